package kube

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The protobuf form of a list: after the magic prefix, an envelope (runtime.Unknown) whose field 2 is the list, whose
// field 1 is its metadata, and field 2 the items.
const (
	protobufMagic = "k8s\x00"
	listField     = 2
	metadataField = 1
	itemField     = 2
	maxItemBytes  = 8 << 20 // etcd's limit is 1.5 MiB by default
)

// forEachItem calls fn with each item of a protobuf list as it arrives, so that only one of them is in memory. raw is
// valid until fn returns. A truncated list is an error.
func forEachItem(r io.Reader, fn func(raw []byte) error) (metadata metav1.ListMeta, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, len(protobufMagic))
	if _, err := io.ReadFull(in, head); err != nil || string(head) != protobufMagic {
		return metadata, errors.New("response is not protobuf")
	}
	var item []byte
	found := false
	err = forEachField(&fieldReader{in: in, remaining: -1}, func(field uint64, value *fieldReader) error {
		if field != listField {
			return nil
		}
		found = true
		return forEachField(value, func(field uint64, value *fieldReader) error {
			if field != metadataField && field != itemField {
				return nil
			}
			if value.remaining > maxItemBytes {
				return fmt.Errorf("item of %d bytes is too large", value.remaining)
			}
			if int64(cap(item)) < value.remaining {
				item = make([]byte, value.remaining)
			}
			item = item[:value.remaining]
			if _, err := io.ReadFull(value, item); err != nil {
				return err
			}
			if field == metadataField {
				return metadata.Unmarshal(item)
			}
			return fn(item)
		})
	})
	if err == nil && !found {
		err = errors.New("no list in the response")
	}
	if err != nil {
		return metadata, fmt.Errorf("decode protobuf list: %w", err)
	}
	return metadata, nil
}

// fieldReader reads one field of a stream; remaining is -1 for the whole stream.
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

// forEachField calls fn with each field of a message. fn may leave any part of the field unread.
func forEachField(message *fieldReader, fn func(field uint64, value *fieldReader) error) error {
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
			return fmt.Errorf("field %d of %d bytes is larger than its message", tag>>3, size)
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
