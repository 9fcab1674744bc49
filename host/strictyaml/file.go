package strictyaml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ReadFile reads a file of at most so many bytes that people write: a regular one, since opening another kind may
// wait for ever.
func ReadFile(path string, most int64) ([]byte, error) {
	if err := CheckRegularFile(path, most); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// CheckRegularFile tells what keeps a file from being read: that it is not there, not a regular file, or larger than most.
func CheckRegularFile(path string, most int64) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("is a directory")}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	case info.Size() > most:
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB", most>>20)}
	}
	return nil
}
