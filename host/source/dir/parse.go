package dir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/source"
)

// document is one YAML document, or one JSON value, with the objects in it.
type document struct {
	text     string // for recognising it in the file's next version
	line     int    // where it starts, from 1
	objects  []*object
	problems []source.Problem // of the document itself, and of what is no object; without file and line
}

// parse cuts a file into documents and decodes them. Those whose text is in known are taken from there. A document
// that is not well-formed ends up in the problem, which belongs to the file; the others are returned.
func parse(text []byte, isJSON bool, known []*document) ([]*document, *source.Problem) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	cut := cutYAML
	if isJSON {
		cut = cutJSON
	}
	parts, err := cut(string(text))
	var problem *source.Problem
	if err != nil {
		problem = err
	}
	old := make(map[string]*document, len(known))
	for _, d := range known {
		old[d.text] = d
	}
	var docs []*document
	for _, part := range parts {
		d := &document{text: part.text, line: part.line}
		if o := old[part.text]; o != nil {
			d.objects, d.problems = o.objects, o.problems
			docs = append(docs, d)
			continue
		}
		raw := []byte(part.text)
		if !isJSON {
			var err *source.Problem
			if raw, err = toJSON(part, d); err != nil {
				if problem == nil {
					problem = err
				}
				continue
			}
		}
		d.decode(raw)
		docs = append(docs, d)
	}
	return docs, problem
}

type part struct {
	text string
	line int
}

// cutYAML cuts at the lines that begin with "---" or "...": a scalar cannot hold them at the start of a line.
// Documents of comments, blanks and directives only are left out.
func cutYAML(text string) ([]part, *source.Problem) {
	var parts []part
	start, line, begin := 0, 0, 1
	some := false // the document has contents
	flush := func(end, next int) {
		if some {
			parts = append(parts, part{text[start:end], begin})
		}
		start, begin, some = next, line+1, false
	}
	for at := 0; at < len(text); {
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		line++
		l := strings.TrimRight(text[at:end], " \t\r\n")
		switch {
		case l == "---" || strings.HasPrefix(l, "--- ") || strings.HasPrefix(l, "---\t"):
			line--
			flush(at, at)
			line++
			rest := strings.TrimLeft(l[3:], " \t")
			some = rest != "" && rest[0] != '#'
		case l == "..." || strings.HasPrefix(l, "... "):
			flush(at, end)
		default:
			t := strings.TrimLeft(l, " \t")
			if t != "" && t[0] != '#' && (t[0] != '%' || some) {
				some = true
			}
		}
		at = end
	}
	flush(len(text), len(text))
	return parts, nil
}

// cutJSON cuts a stream of JSON values.
func cutJSON(text string) ([]part, *source.Problem) {
	var parts []part
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		at := dec.InputOffset()
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			begin := text[:len(text)-len(strings.TrimLeft(text[at:], " \t\r\n"))]
			line := 1 + strings.Count(begin, "\n")
			if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
				line = 1 + strings.Count(text[:min(int(s.Offset), len(text))], "\n")
			} else if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the JSON text ends too early")
			}
			return parts, &source.Problem{Line: line, Err: err}
		}
		start := int(dec.InputOffset()) - len(raw)
		parts = append(parts, part{string(raw), 1 + strings.Count(text[:start], "\n")})
	}
}

// toJSON converts a document, with the line numbers of the file in its errors. A key that stands twice is a problem
// but not the end of the document: the last one holds, as it always did for kubectl.
func toJSON(p part, d *document) ([]byte, *source.Problem) {
	raw, strict := yaml.YAMLToJSONStrict([]byte(p.text))
	if strict == nil {
		return raw, nil
	}
	raw, err := yaml.YAMLToJSON([]byte(p.text))
	if err != nil {
		return nil, yamlProblem(err, p.line)
	}
	twice := yamlProblem(strict, p.line)
	d.problems = append(d.problems, source.Problem{Err: fmt.Errorf("%w: the last one is used", twice.Err)})
	return raw, nil
}

// yamlProblem takes the line out of the YAML library's message, and makes it one of the file.
func yamlProblem(err error, begin int) *source.Problem {
	text := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	var line int
	if n, _ := fmt.Sscanf(text, "line %d: ", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
		begin += line - 1
	}
	return &source.Problem{Line: begin, Err: errors.New(strings.ReplaceAll(text, "\n  ", "; "))}
}
