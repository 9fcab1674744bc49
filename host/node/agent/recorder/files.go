package recorder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// files are the files of a recording: the current one, and earlier ones.
type files struct {
	folder *os.Root
	name   string
	count  int
	out    *os.File // nil: none
}

// openFiles opens the folder, and refuses names that lead elsewhere.
func openFiles(o Options) (*files, error) {
	folder, err := safefile.OpenFolder(filepath.Dir(o.File))
	if err != nil {
		return nil, fmt.Errorf("recording: %w", err)
	}
	f := &files{folder: folder, name: filepath.Base(o.File), count: o.Files}
	for i := range f.count {
		info, err := folder.Lstat(f.number(i))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && !info.Mode().IsRegular():
			err = errors.New("not a regular file")
		case err == nil && !safefile.Owned(info):
			err = errors.New("it belongs to another user")
		}
		if err != nil {
			folder.Close()
			return nil, fmt.Errorf("recording %s: %w", f.number(i), err)
		}
	}
	return f, nil
}

// number returns the name of a file, 0 for the current one.
func (f *files) number(i int) string {
	if i == 0 {
		return f.name
	}
	return fmt.Sprintf("%s.%d", f.name, i)
}

// next closes the current file, renames the files, and creates one that only its owner can read.
func (f *files) next() (*os.File, error) {
	if err := f.closeCurrent(); err != nil {
		return nil, err
	}
	if err := f.folder.Remove(f.number(f.count - 1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for i := f.count - 2; i >= 0; i-- {
		if err := f.folder.Rename(f.number(i), f.number(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	out, err := f.folder.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // follows no link
	f.out = out
	return out, err
}

func (f *files) closeCurrent() error {
	out := f.out
	if f.out = nil; out == nil {
		return nil
	}
	return out.Close()
}

func (f *files) close() {
	_ = f.closeCurrent()
	f.folder.Close()
}
