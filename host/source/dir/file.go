package dir

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// maxFile limits the size of one file: 100,000 Services with their slices are about 150 MB of YAML, in several files.
const maxFile = 128 << 20

// file is a manifest. If problem is set, docs are those of the last version that could be parsed, if any.
type file struct {
	realPath string      // with symbolic links resolved
	info     fs.FileInfo // when it was read
	docs     []*document
	problem  *source.Problem
}

// listedFile is a manifest that a walker has found.
type listedFile struct {
	path, rel, realPath string
	info                fs.FileInfo
}

func isManifest(path string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path))
}

// is reports whether the file was read as it is listed.
func (f *file) is(m *listedFile) bool {
	return f != nil && f.realPath == m.realPath && sameFile(f.info, m.info)
}

func (f *file) documents() []*document {
	if f == nil {
		return nil
	}
	return f.docs
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// read reads and parses a manifest. Documents that have not changed since old are not parsed again. open: a process had it open for writing.
func (m *listedFile) read(ctx context.Context, old *file) (f *file, open bool, err error) {
	r, err := safefile.Open(m.path)
	if err != nil {
		return nil, false, err
	}
	defer r.Close()
	f = &file{realPath: m.realPath}
	if f.info, err = r.Stat(); err != nil {
		return nil, false, err
	}
	text, err := safefile.ReadAll(r, maxFile)
	if err != nil {
		return nil, false, err
	}
	if now, err := r.Stat(); err == nil {
		open = !sameFile(f.info, now) || isOpenForWriting(r)
	}
	known := old.documents()
	if len(bytes.TrimSpace(text)) == 0 && len(known) > 0 {
		// Many programs truncate a file before they write it.
		f.docs = known
		f.problem = &source.Problem{File: m.rel, Err: errors.New("file is empty; keeping the objects of its last valid version until it is written or removed")}
		return f, open, nil
	}
	if f.docs, f.problem, err = parse(ctx, text, strings.HasSuffix(m.rel, ".json"), known); err != nil {
		return nil, false, err
	}
	incomplete := slices.IndexFunc(f.docs, func(d *document) bool { return d.incomplete })
	switch {
	case f.problem != nil:
		f.problem.File, f.problem.Err = m.rel, withKeptNote(f.problem.Err, old)
		if len(known) > 0 {
			f.docs = known
		}
	case incomplete >= 0: // a truncated file can still be well-formed
		if lost := lostDocuments(known, f.docs); len(lost) > 0 {
			f.problem = &source.Problem{File: m.rel, Line: f.docs[incomplete].Line,
				Err: errors.New("object without kind or name, the file may be incomplete; keeping the objects that it no longer contains")}
			f.docs = append(f.docs, lost...)
		}
	}
	return f, open, nil
}

// lostDocuments returns the old documents with objects that no new document has.
func lostDocuments(old, docs []*document) (out []*document) {
	here := map[key]bool{}
	for _, d := range docs {
		for _, o := range d.objects {
			here[o.key] = true
		}
	}
	for _, d := range old {
		if slices.ContainsFunc(d.objects, func(o *object) bool { return !here[o.key] }) {
			out = append(out, d)
		}
	}
	return out
}
