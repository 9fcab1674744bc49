package dir

import (
	"bytes"
	"errors"
	"fmt"

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
	var docs []*document
	for _, part := range parts {
		d := &document{text: part.Text, line: part.Line}
		if o := old[part.Text]; o != nil {
			d.objects, d.problems, d.incomplete = o.objects, o.problems, o.incomplete
			docs = append(docs, d)
			continue
		}
		raw := []byte(part.Text)
		if !isJSON {
			var twice, err error
			if raw, twice, err = part.ToJSON(); err != nil {
				if broken == nil {
					broken = err
				}
				continue
			}
			if twice != nil {
				d.addProblem("", "", fmt.Errorf("%w: the last one is used", errors.Unwrap(twice)))
			}
		}
		d.decode(raw)
		docs = append(docs, d)
	}
	if s := (*strictyaml.SyntaxError)(nil); errors.As(broken, &s) {
		return docs, &source.Problem{Line: s.Line, Err: s.Err}
	}
	return docs, nil
}
