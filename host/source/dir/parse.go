package dir

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// document is one document of a file with its objects.
type document struct {
	text     string // to recognize an unchanged document
	line     int
	objects  []*object
	problems problemList // of the document itself and of values that are not objects; without file and line
	// incomplete: an object in it has no kind or no name, so the file may be truncated.
	incomplete bool
}

// parse splits a file into documents and decodes them. Documents whose text is in known are reused. The problem is about
// the first document that is not well-formed; the others are returned.
func parse(text []byte, isJSON bool, known []*document) ([]*document, *source.Problem) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var parts []strictyaml.Document
	var broken error
	if isJSON {
		parts, broken = strictyaml.SplitJSON(string(text))
	} else {
		parts = strictyaml.SplitYAML(string(text))
	}
	old := make(map[string]*document, len(known))
	for _, d := range known {
		old[d.text] = d
	}
	docs := make([]*document, len(parts))
	errs := make([]error, len(parts))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, part := range parts {
		if o := old[part.Text]; o != nil {
			docs[i] = &document{text: part.Text, line: part.Line, objects: o.objects, problems: o.problems, incomplete: o.incomplete}
			continue
		}
		g.Go(func() error {
			docs[i], errs[i] = newDocument(part, isJSON)
			return nil
		})
	}
	_ = g.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 && broken == nil {
		broken = errs[i]
	}
	docs = slices.DeleteFunc(docs, func(d *document) bool { return d == nil })
	if s := (*strictyaml.SyntaxError)(nil); errors.As(broken, &s) {
		return docs, &source.Problem{Line: s.Line, Err: s.Err}
	}
	return docs, nil
}

// newDocument decodes a document of a file. The error is that it is not well-formed.
func newDocument(part strictyaml.Document, isJSON bool) (*document, error) {
	d, raw := &document{text: part.Text, line: part.Line}, []byte(part.Text)
	if !isJSON {
		var twice, err error
		if raw, twice, err = part.ToJSON(); err != nil {
			return nil, err
		}
		if twice != nil {
			d.addProblem("", "", fmt.Errorf("%w: the last one is used", errors.Unwrap(twice)))
		}
	}
	d.decode(raw)
	return d, nil
}
