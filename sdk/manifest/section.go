package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Section is the name of the custom section.
const Section = "sluice"

// ErrNone means that a module has no manifest.
var ErrNone = errors.New(`no custom section "` + Section + `": the module does not say what it is; write a plugin.json beside its source, and build it with ` +
	`'sluice plugin build', or add it with 'sluice plugin embed'`)

var errNotModule = errors.New("not a WebAssembly module")

var header = []byte("\x00asm\x01\x00\x00\x00")

// Read returns the manifest of a module. It reads nothing but the lengths of other sections.
func Read(module []byte) (*Manifest, error) {
	var content []byte
	found := 0
	err := eachSection(module, func(_, _ int, body []byte) {
		if found++; found == 1 {
			content = body
		}
	})
	switch {
	case err != nil:
		return nil, err
	case found == 0:
		return nil, ErrNone
	case found > 1:
		return nil, fmt.Errorf("custom section %q: %d of them, want one", Section, found)
	}
	m, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("custom section %q: %w", Section, err)
	}
	return m, nil
}

// Embed returns a module with the manifest, in the place of one that it has. The same inputs make the same bytes.
func Embed(module []byte, m *Manifest) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	content := m.Encode()
	if len(content) > MaxLen {
		return nil, fmt.Errorf("%d bytes, the limit is %d", len(content), MaxLen)
	}
	var out []byte
	from := 0
	err := eachSection(module, func(begin, end int, _ []byte) {
		out = append(out, module[from:begin]...)
		from = end
	})
	if err != nil {
		return nil, err
	}
	return AppendSection(append(out, module[from:]...), content), nil
}

// AppendSection appends a custom section of that name, whatever its content.
func AppendSection(module, content []byte) []byte {
	body := append(binary.AppendUvarint(nil, uint64(len(Section))), Section...)
	body = append(body, content...)
	return append(binary.AppendUvarint(append(module, 0), uint64(len(body))), body...)
}

// eachSection calls f with each custom section of that name: where it begins and ends in the module, and its content.
func eachSection(module []byte, f func(begin, end int, content []byte)) error {
	if !bytes.HasPrefix(module, header) {
		return errNotModule
	}
	for at := len(header); at < len(module); {
		size, n := readSize(module[at+1:])
		begin := at + 1 + n
		if n == 0 || size > len(module)-begin {
			return errNotModule
		}
		end := begin + size
		if module[at] == 0 {
			length, n := readSize(module[begin:end])
			if n == 0 || length > size-n {
				return errNotModule
			}
			if name := begin + n; string(module[name:name+length]) == Section {
				f(at, end, module[name+length:end])
			}
		}
		at = end
	}
	return nil
}

// readSize reads an unsigned LEB128 of 32 bits, of at most five bytes; n is 0 if there is none.
func readSize(b []byte) (size, n int) {
	v, n := binary.Uvarint(b[:min(len(b), 5)])
	if n <= 0 || v > math.MaxUint32 {
		return 0, 0
	}
	return int(v), n
}
