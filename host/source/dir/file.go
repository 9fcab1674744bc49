package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// maxFile limits the size of one file: 100,000 Services with their slices are about 150 MB of YAML, in several files.
const maxFile = 128 << 20

// coarsest is the resolution of file times that is reckoned with: a file younger than that may change without another time.
const coarsest = 2 * time.Second

// file is the state of a manifest.
type file struct {
	info    fs.FileInfo // when it was read; nil: it is to be read again
	docs    []*document // of its last valid version, if problem is set
	gone    bool        // the last scan missed it; the documents serve if it comes back and is not valid
	problem *source.Problem
	// temporary is why the next scan may read it: for want of descriptors or memory, or it changed while it was read.
	temporary error
}

// openFlags open a file without waiting: it may have become a FIFO.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// is reports whether a file was read as it is now.
func (f *file) is(info fs.FileInfo) bool { return f.info != nil && sameFile(f.info, info) }

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && safefile.Changed(a).Equal(safefile.Changed(b))
}

// readFile returns the new state of a file. Documents whose text is in the old one are not decoded again. now is nil if
// times of files are not to be relied on.
func readFile(ctx context.Context, now func() time.Time, rel string, open func() (*os.File, error), old *file) *file {
	f := &file{docs: old.docs}
	text, info, err := readText(open)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errWritten) { // the next scan decides
		f.problem, f.temporary = old.problem, err
		return f
	}
	if err != nil {
		f.problem = &source.Problem{File: rel, Err: keepingNote(err, old)}
		if safefile.IsTemporary(err) {
			f.temporary = err
		}
		return f
	}
	if now != nil && now().Sub(safefile.Changed(info)).Abs() > coarsest { // a clock may have been set back since
		f.info = info
	}
	f.docs, f.problem = parse(ctx, text, strings.HasSuffix(rel, ".json"), old.docs)
	torn := slices.IndexFunc(f.docs, func(d *document) bool { return d.incomplete })
	switch {
	case f.problem != nil || len(old.docs) == 0:
	case len(bytes.TrimSpace(text)) == 0: // many programs truncate a file before they write it
		f.problem = &source.Problem{Err: errors.New("the file is empty")}
	case torn >= 0: // a truncated file can still be well-formed
		f.problem = &source.Problem{Line: f.docs[torn].Line, Err: errors.New("object without kind or name: the file may be incomplete")}
	}
	if f.problem != nil {
		f.problem.File, f.problem.Err = rel, keepingNote(f.problem.Err, old)
		if len(old.docs) > 0 {
			f.docs = old.docs
		}
	}
	return f
}

var errWritten = errors.New("the file changed while it was read")

func readText(open func() (*os.File, error)) ([]byte, fs.FileInfo, error) {
	r, err := open()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, nil, err
	}
	text, err := safefile.ReadAll(r, maxFile)
	if now, wrong := r.Stat(); err == nil && wrong == nil && !sameFile(info, now) {
		err = errWritten
	}
	return text, info, err
}

func keepingNote(err error, old *file) error {
	if len(old.docs) == 0 {
		return err
	}
	return fmt.Errorf("%w; keeping the objects of its last valid version", err)
}
