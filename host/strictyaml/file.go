package strictyaml

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ReadFile reads a regular file of at most limit bytes. Opening another kind of file may block forever.
func ReadFile(path string, limit int64) ([]byte, error) {
	if err := CheckRegularFile(path, limit); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// CheckRegularFile returns an error if a file does not exist, is not a regular file, or is larger than limit bytes.
func CheckRegularFile(path string, limit int64) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("is a directory")}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	case info.Size() > limit:
		return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB", limit>>20)}
	}
	return nil
}
