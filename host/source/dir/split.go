package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// document is a document of a file, or an item of a List in it, with its objects.
type document struct {
	strictyaml.Document // its text serves to recognize an unchanged one
	objects             []*object
	problems            problemList // of the document itself and of values that are not objects; without file and line
	incomplete          bool        // an object in it has no kind or no name, so the file may be truncated
}

// parse splits a file into documents and decodes them, on all CPUs. Those whose text is in known are reused. The problem is
// about the first document that is not well-formed; the others are returned.
func parse(ctx context.Context, text []byte, isJSON bool, known []*document) (docs []*document, problem *source.Problem) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var parts []strictyaml.Document
	var broken error
	if isJSON {
		parts, broken = strictyaml.SplitJSON(string(text))
	} else {
		parts = strictyaml.SplitYAML(string(text))
	}
	byText := make(map[string]*document, len(known))
	for _, d := range known {
		byText[d.Text] = d
	}
	var all []*document
	for _, part := range parts {
		for _, d := range splitList(part, isJSON) {
			all = append(all, &document{Document: d})
		}
	}
	errs := make([]error, len(all))
	onAllCPUs(ctx, len(all), func(i int) {
		if old := byText[all[i].Text]; old != nil {
			all[i].objects, all[i].problems, all[i].incomplete = old.objects, old.problems, old.incomplete
		} else {
			errs[i] = all[i].decodeText(isJSON)
		}
	})
	for i, d := range all {
		if errs[i] == nil {
			docs = append(docs, d)
		} else if broken == nil {
			broken = errs[i]
		}
	}
	if s := (*strictyaml.SyntaxError)(nil); errors.As(broken, &s) {
		problem = &source.Problem{Line: s.Line, Err: s.Err}
	}
	return docs, problem
}

// onAllCPUs calls f for 0 to n-1, or until ctx has ended.
func onAllCPUs(ctx context.Context, n int, f func(i int)) {
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := 0; i < n && ctx.Err() == nil; i++ {
		g.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = g.Wait()
}

// decodeText decodes the objects of a document. The error is that it is not well-formed.
func (d *document) decodeText(isJSON bool) error {
	raw := []byte(d.Text)
	if !isJSON {
		var twice, err error
		if raw, twice, err = d.ToJSON(); err != nil {
			return err
		}
		if twice != nil {
			d.addProblem("", "", fmt.Errorf("%w: the last one is used", errors.Unwrap(twice)))
		}
	}
	d.decode(raw)
	return nil
}

// splitList returns the items of a List as kubectl prints it, as documents: they are decoded on all CPUs, with a fraction of
// the memory, and again only if they have changed. It returns any other document as it is.
func splitList(d strictyaml.Document, isJSON bool) []strictyaml.Document {
	var spans []span
	var isList bool
	if isJSON {
		spans, isList = listItems([]byte(d.Text))
	} else {
		spans, isList = yamlItems(d.Text)
	}
	if !isList || len(spans) == 0 {
		return []strictyaml.Document{d}
	}
	out := make([]strictyaml.Document, len(spans))
	line, at := d.Line, 0
	for i, s := range spans {
		line += strings.Count(d.Text[at:s.start], "\n")
		at = s.start
		item := d.Text[s.start:s.end]
		if !isJSON {
			item = " " + item[1:] // without its dash
		}
		out[i] = strictyaml.Document{Text: item, Line: line}
	}
	return out
}

// span is where an item is in the text of its List.
type span struct{ start, end int }

// UnmarshalJSONFrom implements jsonv2.UnmarshalerFrom.
func (s *span) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	raw, err := dec.ReadValue()
	s.end = int(dec.InputOffset())
	s.start = s.end - len(raw)
	return err
}

// listItems returns the items of a v1 List in JSON.
func listItems(raw []byte) (items []span, isList bool) {
	var list struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Items      []span `json:"items"`
	}
	err := jsonv2.Unmarshal(raw, &list)
	return list.Items, err == nil && list.APIVersion == "v1" && list.Kind == "List"
}

// yamlItems returns the items of a v1 List that is written as kubectl does.
func yamlItems(text string) (items []span, isList bool) {
	const name = "\nitems:\n"
	begin := strings.Index(text, name) + 1
	if begin == 0 || strictyaml.HasAlias(text) {
		return nil, false
	}
	at := begin + len(name) - 1
	for line := range strings.Lines(text[at:]) {
		if strings.HasPrefix(line, "- ") {
			items = append(items, span{start: at})
		} else if len(items) == 0 || line[0] != ' ' && line[0] != '\n' {
			break
		}
		at += len(line)
		items[len(items)-1].end = at
	}
	head, err := yaml.YAMLToJSONStrict([]byte(text[:begin] + "items: []\n" + text[at:]))
	if err == nil {
		_, isList = listItems(head)
	}
	return items, isList
}
