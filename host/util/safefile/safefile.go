// Package safefile reads and replaces files without trusting what else is on the disk: what is read is a regular file of
// bounded size, and what is written is in a folder that no other user may write to.
package safefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Open opens a regular file for reading. It follows symbolic links, of which volumes of ConfigMaps consist, but refuses
// FIFOs and devices, whose reading may block or never end, and files of pseudo file systems.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path) // before opening, which has side effects on some devices
	if err != nil {
		return nil, err
	}
	if err := checkRegular(path, info); err != nil {
		return nil, err
	}
	// The path may lead to another file by now. Opening a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err = f.Stat()
	if err == nil {
		err = checkRegular(path, info)
	}
	if name := pseudoFileSystem(f); err == nil && name != "" {
		err = refused(path, fmt.Errorf("%s is a pseudo file system", name))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Read returns the content of a regular file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadAll(f, limit)
}

// ReadAll reads an open file to its end if that is at most limit bytes.
func ReadAll(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size > limit {
		return nil, refused(f.Name(), fmt.Errorf("%s, larger than %s", formatSize(size), formatSize(limit)))
	}
	text := make([]byte, 0, size+1) // one more, to find the end of the file
	for {
		n, err := f.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		switch {
		case int64(len(text)) > limit:
			return nil, refused(f.Name(), fmt.Errorf("larger than %s", formatSize(limit)))
		case errors.Is(err, io.EOF):
			return text, nil
		case err != nil:
			return nil, err
		}
		if len(text) == cap(text) { // the file has grown
			text = append(text, 0)[:len(text)]
		}
	}
}

// Check returns the error of Read without reading.
func Check(path string, limit int64) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		err = refused(path, fmt.Errorf("larger than %s", formatSize(limit)))
	}
	return err
}

// IsTemporary reports whether an error of opening a file is about the process or the system and not about the file: the
// same file can be read later.
func IsTemporary(err error) bool {
	for _, temporary := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN} {
		if errors.Is(err, temporary) {
			return true
		}
	}
	return false
}

func checkRegular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return refused(path, errors.New("is a directory"))
	case !info.Mode().IsRegular():
		return refused(path, errors.New("not a regular file"))
	}
	return nil
}

func refused(path string, err error) error { return &fs.PathError{Op: "read", Path: path, Err: err} }

func formatSize(n int64) string {
	if n>>20 > 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}
