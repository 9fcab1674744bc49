package dir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// document is a document of a file, or an item of a List in it, with its objects.
type document struct {
	strictyaml.Document // its text serves to recognize an unchanged one
	listItem
	objects  []*object
	problems problemList // of the document itself and of values that are not objects; without file and line
	// incomplete: an object in it has no kind or no name, so the file may be truncated.
	incomplete bool
}

// listItem says where a document is in a List; zero if it is in none.
type listItem struct {
	path    string // "items[3]"
	implied string // apiVersion and kind that an item of a typed list may omit
	yaml    bool   // the text is a sequence of one item
}

// parse splits a file into documents and decodes them, on all CPUs. Those whose text is in known are reused. The problem is
// about the first document that is not well-formed; the others are returned. The error is that ctx has ended.
func parse(ctx context.Context, text []byte, isJSON bool, known []*document) ([]*document, *source.Problem, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var parts []strictyaml.Document
	var broken error
	if isJSON {
		parts, broken = strictyaml.SplitJSON(string(text))
	} else {
		parts = strictyaml.SplitYAML(string(text))
	}
	p := &parser{isJSON: isJSON, known: make(map[string]*document, len(known))}
	for _, d := range known {
		p.known[d.Text] = d
	}
	docs, errs := make([][]*document, len(parts)), make([]error, len(parts))
	err := onAllCPUs(ctx, len(parts), func(i int) (err error) {
		docs[i], errs[i] = p.parse(ctx, parts[i])
		return ctx.Err()
	})
	if err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 && broken == nil {
		broken = errs[i]
	}
	if s := (*strictyaml.SyntaxError)(nil); errors.As(broken, &s) {
		return slices.Concat(docs...), &source.Problem{Line: s.Line, Err: s.Err}, nil
	}
	return slices.Concat(docs...), nil, nil
}

// onAllCPUs calls f for 0 to n-1. It stops after the first error.
func onAllCPUs(ctx context.Context, n int, f func(i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := 0; i < n && ctx.Err() == nil; i++ {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

type parser struct {
	isJSON bool
	known  map[string]*document // by text
}

// parse decodes a document; a List as its items. The error is that it is not well-formed.
func (p *parser) parse(ctx context.Context, part strictyaml.Document) ([]*document, error) {
	if items := splitList(part, p.isJSON); items != nil {
		err := onAllCPUs(ctx, len(items), func(i int) error { return p.decode(items[i]) })
		if err == nil {
			return items, nil
		} // an item has a mistake that is one of the List
	}
	d := &document{Document: part}
	if err := p.decode(d); err != nil {
		return nil, err
	}
	return []*document{d}, nil
}

func (p *parser) decode(d *document) error {
	if o := p.known[d.Text]; o != nil && o.implied == d.implied && o.yaml == d.yaml && (o.path == d.path || len(o.problems.list) == 0) {
		d.objects, d.problems, d.incomplete = o.objects, o.problems, o.incomplete
		return nil
	}
	raw := []byte(d.Text)
	if !p.isJSON {
		var twice, err error
		if raw, twice, err = d.ToJSON(); err != nil {
			return err
		}
		if d.yaml {
			if twice != nil {
				return twice
			}
			raw = raw[1 : len(raw)-1]
		} else if twice != nil {
			d.addProblem("", "", fmt.Errorf("%w: the last one is used", errors.Unwrap(twice)))
		}
	}
	d.decode(raw)
	return nil
}
