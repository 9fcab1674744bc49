package dir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/safefile"
	"github.com/sluice-proxy/sluice/host/source"
)

// maxFile limits the size of one file: 100,000 Services with their slices are about 150 MB of YAML, in several files.
const maxFile = 128 << 20

// file is a manifest. If problem is set, docs are those of the last version that could be parsed, if any.
type file struct {
	path           string      // below the root
	realPath       string      // with symbolic links resolved
	info           fs.FileInfo // of realPath, when it was read
	docs           []*document
	problem        *source.Problem
	openForWriting bool // a process had it open for writing while it was read
}

// listedFile is a manifest that a walker has found.
type listedFile struct {
	path, rel, realPath string
	info                fs.FileInfo
}

// read reads and parses a manifest. Documents that have not changed since old are not parsed again.
func (m listedFile) read(old *file) (*file, error) {
	f := &file{path: m.path, realPath: m.realPath, info: m.info}
	r, err := safefile.Open(m.path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if f.info, err = r.Stat(); err != nil {
		return nil, err
	}
	text, err := safefile.ReadAll(r, maxFile)
	if err != nil {
		return nil, err
	}
	if now, err := r.Stat(); err == nil {
		f.openForWriting = !sameFile(f.info, now) || isOpenForWriting(r)
	}
	var known []*document
	if old != nil {
		known = old.docs
	}
	if len(bytes.TrimSpace(text)) == 0 && len(known) > 0 {
		// Many programs truncate a file before they write it.
		f.docs = known
		f.problem = &source.Problem{File: m.rel, Err: errors.New("file is empty; keeping the objects of its last valid version until it is written or removed")}
		return f, nil
	}
	docs, problem := parse(text, strings.HasSuffix(m.rel, ".json"), known)
	if problem != nil {
		problem.File = m.rel
		f.problem = problem
		if len(known) > 0 {
			problem.Err = withKeptNote(problem.Err, old)
			docs = known
		}
	} else if i := slices.IndexFunc(docs, func(d *document) bool { return d.incomplete }); i >= 0 && len(known) > 0 {
		// A truncated file can still be well-formed.
		if lost := lostDocuments(known, docs); len(lost) > 0 {
			f.problem = &source.Problem{File: m.rel, Line: docs[i].line,
				Err: errors.New("object without kind or name, the file may be incomplete; keeping the objects that it no longer contains")}
			docs = append(docs, lost...)
		}
	}
	f.docs = docs
	return f, nil
}

// lostDocuments returns the old documents with objects that no new document has.
func lostDocuments(old, docs []*document) []*document {
	type id struct {
		kind string
		name model.Name
	}
	here := map[id]bool{}
	for _, d := range docs {
		for _, o := range d.objects {
			here[id{o.kind, o.name}] = true
		}
	}
	var out []*document
	for _, d := range old {
		if slices.ContainsFunc(d.objects, func(o *object) bool { return !here[id{o.kind, o.name}] }) {
			out = append(out, d)
		}
	}
	return out
}

func withKeptNote(err error, old *file) error {
	if old == nil || len(old.docs) == 0 {
		return err
	}
	return fmt.Errorf("%w; keeping the objects of its last valid version", err)
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
