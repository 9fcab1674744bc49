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
	magic     = "k8s\x00"
	listField = 2
	itemField = 2
	maxItem   = 8 << 20 // bytes; etcd takes far smaller ones
)

// eachItem gives the items of a list in protobuf as they arrive, so that nothing but one of them is in memory. raw is
// valid until do returns. A list that ends early is an error.
func eachItem(r io.Reader, do func(raw []byte) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(in, head); err != nil || string(head) != magic {
		return errors.New("the answer is not in protobuf")
	}
	var item []byte
	found := false
	err := eachField(&span{in: in, left: -1}, func(field uint64, of *span) error {
		if field != listField {
			return nil
		}
		found = true
		return eachField(of, func(field uint64, of *span) error {
			if field != itemField {
				return nil
			}
			if of.left > maxItem {
				return fmt.Errorf("an object of %d bytes", of.left)
			}
			if int64(cap(item)) < of.left {
				item = make([]byte, of.left)
			}
			item = item[:of.left]
			if _, err := io.ReadFull(of, item); err != nil {
				return err
			}
			return do(item)
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

// span is a part of a stream; left -1: all of it.
type span struct {
	in   *bufio.Reader
	left int64
}

func (s *span) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if s.left > 0 && int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.in.Read(p)
	if s.left > 0 {
		s.left -= int64(n)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// ReadByte implements io.ByteReader.
func (s *span) ReadByte() (byte, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	b, err := s.in.ReadByte()
	if err == nil && s.left > 0 {
		s.left--
	} else if err == io.EOF && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// eachField gives the fields of a message; do reads as much of each as it wants.
func eachField(of *span, do func(field uint64, of *span) error) error {
	const lengthDelimited = 2
	for {
		tag, err := binary.ReadUvarint(of)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if tag&7 != lengthDelimited {
			return fmt.Errorf("field %d has wire type %d", tag>>3, tag&7)
		}
		size, err := binary.ReadUvarint(of)
		switch {
		case err == io.EOF:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case of.left >= 0 && size > uint64(of.left), size > maxList:
			return fmt.Errorf("field %d of %d bytes is larger than what it is in", tag>>3, size)
		}
		field := &span{in: of.in, left: int64(size)}
		if err := do(tag>>3, field); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, field); err != nil {
			return err
		}
		if of.left > 0 {
			of.left -= int64(size)
		}
	}
}
