package plugins

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// ReadModuleFile reads the file of a module, which may be compressed with gzip. Neither the file nor the module may have more
// than MaxModule bytes.
func ReadModuleFile(path string) ([]byte, error) {
	text, err := safefile.Read(path, MaxModule)
	if err != nil {
		return nil, err
	}
	module, err := unpack(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return module, nil
}

// unpack returns a module as it is, or unpacks it.
func unpack(text []byte) ([]byte, error) {
	if !bytes.HasPrefix(text, []byte("\x1f\x8b")) { // RFC 1952
		return text, nil
	}
	zip, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("gzip: %w", err)
	}
	module, err := io.ReadAll(io.LimitReader(zip, MaxModule+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("gzip: %w", err)
	case len(module) > MaxModule:
		return nil, fmt.Errorf("gzip: more than %d bytes when unpacked", MaxModule)
	}
	return module, nil
}
