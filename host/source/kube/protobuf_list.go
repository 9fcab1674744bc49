package kube

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// What a list looks like in protobuf: an envelope whose field 2 is the list, whose field 2 are its items.
const (
	protobufMagic = "k8s\x00"
	listField     = 2
	itemField     = 2
	maxItemBytes  = 8 << 20 // bytes; etcd takes far smaller ones
)

// forEachItem gives the items of a list in protobuf as they arrive, so that nothing but one of them is in memory. raw is
// valid until do returns. A list that ends early is an error.
func forEachItem(r io.Reader, fn func(raw []byte) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, len(protobufMagic))
	if _, err := io.ReadFull(in, head); err != nil || string(head) != protobufMagic {
		return errors.New("the answer is not in protobuf")
	}
	var item []byte
	found := false
	err := forEachField(&fieldReader{in: in, remaining: -1}, func(field uint64, of *fieldReader) error {
		if field != listField {
			return nil
		}
		found = true
		return forEachField(of, func(field uint64, of *fieldReader) error {
			if field != itemField {
				return nil
			}
			if of.remaining > maxItemBytes {
				return fmt.Errorf("an object of %d bytes", of.remaining)
			}
			if int64(cap(item)) < of.remaining {
				item = make([]byte, of.remaining)
			}
			item = item[:of.remaining]
			if _, err := io.ReadFull(of, item); err != nil {
				return err
			}
			return fn(item)
		})
	})
	if err == nil && !found {
		err = errors.New("there is no list in it")
	}
	if err != nil {
		return fmt.Errorf("read a list in protobuf: %w", err)
	}
	return nil
}

// fieldReader is a part of a stream; left -1: all of it.
type fieldReader struct {
	in        *bufio.Reader
	remaining int64
}

func (s *fieldReader) Read(p []byte) (int, error) {
	if s.remaining == 0 {
		return 0, io.EOF
	}
	if s.remaining > 0 && int64(len(p)) > s.remaining {
		p = p[:s.remaining]
	}
	n, err := s.in.Read(p)
	if s.remaining > 0 {
		s.remaining -= int64(n)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// ReadByte implements io.ByteReader.
func (s *fieldReader) ReadByte() (byte, error) {
	if s.remaining == 0 {
		return 0, io.EOF
	}
	b, err := s.in.ReadByte()
	if err == nil && s.remaining > 0 {
		s.remaining--
	} else if err == io.EOF && s.remaining > 0 {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// forEachField gives the fields of a message; do reads as much of each as it wants.
func forEachField(message *fieldReader, fn func(field uint64, message *fieldReader) error) error {
	const lengthDelimited = 2
	for {
		tag, err := binary.ReadUvarint(message)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if tag&7 != lengthDelimited {
			return fmt.Errorf("field %d has wire type %d", tag>>3, tag&7)
		}
		size, err := binary.ReadUvarint(message)
		switch {
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case message.remaining >= 0 && size > uint64(message.remaining), size > maxListBytes:
			return fmt.Errorf("field %d of %d bytes is larger than what it is in", tag>>3, size)
		}
		field := &fieldReader{in: message.in, remaining: int64(size)}
		if err := fn(tag>>3, field); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, field); err != nil {
			return err
		}
		if message.remaining > 0 {
			message.remaining -= int64(size)
		}
	}
}
