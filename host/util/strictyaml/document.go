package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"sigs.k8s.io/yaml"
)

// Document is one YAML document or one JSON value of a file.
type Document struct {
	Text string
	Line int // where it starts, from 1
}

// SyntaxError is the reason why a document is not well-formed.
type SyntaxError struct {
	Line int // of the file
	Err  error
}

// Error returns "line n: error".
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the cause.
func (e *SyntaxError) Unwrap() error { return e.Err }

// SplitYAML splits text at the lines that begin with "---" or "...", which a scalar cannot contain at the start of a line.
// Documents of only comments, blanks and directives are omitted.
func SplitYAML(text string) []Document {
	var docs []Document
	start, line, begin := 0, 0, 1
	some := false // the document has content
	flush := func(end, next int) {
		if some {
			docs = append(docs, Document{text[start:end], begin})
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
	return docs
}

// SplitJSON splits a stream of JSON values. With an error it returns the values before the error.
func SplitJSON(text string) ([]Document, error) {
	var docs []Document
	dec := jsontext.NewDecoder(strings.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	line, counted := 1, 0
	for {
		at := int(dec.InputOffset())
		raw, err := dec.ReadValue()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			begin := text[:len(text)-len(strings.TrimLeft(text[at:], " \t\r\n"))]
			line := 1 + strings.Count(begin, "\n")
			if s := (*jsontext.SyntacticError)(nil); errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("unexpected end of JSON")
			} else if errors.As(err, &s) {
				line = 1 + strings.Count(text[:min(int(s.ByteOffset), len(text))], "\n")
				err = s.Err
			}
			return docs, &SyntaxError{line, err}
		}
		end := int(dec.InputOffset())
		start := end - len(raw)
		line += strings.Count(text[counted:start], "\n")
		counted = start
		if deep := tooDeepOffset(raw); deep >= 0 {
			return docs, &SyntaxError{line + bytes.Count(raw[:deep], []byte("\n")), errTooDeep}
		}
		docs = append(docs, Document{text[start:end], line})
	}
}

// ToJSON converts a YAML document. Duplicate keys are not fatal: the last one is used, as with kubectl, and the error
// duplicates names them. err is a *SyntaxError. Documents that are nested too deeply, or too large once aliases are
// expanded, are rejected.
func (d Document) ToJSON() (raw []byte, duplicates, err error) {
	if HasAlias(d.Text) {
		if err := d.checkSize(); err != nil {
			return nil, nil, err
		}
	}
	if raw, err = yaml.YAMLToJSONStrict([]byte(d.Text)); err != nil {
		duplicates = d.syntaxError(err)
		if raw, err = yaml.YAMLToJSON([]byte(d.Text)); err != nil {
			return nil, nil, d.syntaxError(err)
		}
	}
	if tooDeepOffset(raw) >= 0 {
		if err := d.checkSize(); err != nil { // reports the line
			return nil, nil, err
		}
		return nil, nil, &SyntaxError{d.Line, errTooDeep}
	}
	return raw, duplicates, nil
}

// syntaxError converts an error of the YAML library: its line becomes a line of the file.
func (d Document) syntaxError(err error) error {
	if at, path, value := d.notFinite(); at > 0 {
		return &SyntaxError{at, fmt.Errorf("%s: %s is not a finite number", path, value)}
	}
	text, begin := err.Error(), d.Line
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	var line int
	if n, _ := fmt.Sscanf(text, "line %d: ", &line); n == 1 {
		_, text, _ = strings.Cut(text, ": ")
		begin += line - 1
	}
	all := strings.SplitN(text, "\n  ", MaxReported+1)
	more := ""
	if len(all) > MaxReported {
		more = fmt.Sprintf("; and %d more", 1+strings.Count(all[MaxReported], "\n  "))
		all = all[:MaxReported]
	}
	for i := range all {
		all[i] = truncateKey(all[i])
	}
	return &SyntaxError{begin, errors.New(strings.Join(all, "; ") + more)}
}
