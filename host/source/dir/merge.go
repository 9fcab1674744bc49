package dir

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// entry is an object of a directory.
type entry struct {
	object   *object      // in use
	valid    *object      // its last version without errors; nil: there was none
	problems *problemList // of the version in the file
	file     string
	line     int
}

// merge returns the changes since the last merge, sorted by kind and name, and the current problems, sorted by file and
// limited per file. Of duplicate objects the first one in the order of files and documents is used. An object with an
// invalid field is used without that field if it is new; otherwise its last valid version is used.
func (d *directory) merge() ([]model.Change, []source.Problem) {
	reports := map[string]*problemList{} // by file
	report := func(part *problemList, file string, line int, kept bool) {
		if part.errors+part.warnings == 0 {
			return
		}
		if reports[file] == nil {
			reports[file] = &problemList{}
		}
		reports[file].addAll(part, file, line, kept)
	}
	add := func(p source.Problem) {
		one := problemList{}
		one.add(p)
		report(&one, p.File, p.Line, false)
	}
	for _, p := range d.problems {
		add(p)
	}
	next := make(map[key]*entry, len(d.last))
	mirrored := map[model.Name]bool{}
	var endpoints []*entry
	for _, rel := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[rel]
		if f.problem != nil {
			add(*f.problem)
		}
		for _, doc := range f.docs {
			report(&doc.problems, rel, doc.Line, false)
			for _, o := range doc.objects {
				if first := next[o.key]; first != nil {
					add(source.Problem{
						File: rel, Line: doc.Line, Object: o.title(), Err: fmt.Errorf("duplicate of the object in %s:%d, which is used", first.file, first.line),
					})
					continue
				}
				e := &entry{object: o, valid: o, problems: &o.problems, file: rel, line: doc.Line}
				if o.problems.errors > 0 {
					if e.valid = nil; d.last[o.key] != nil && d.last[o.key].valid != nil {
						e.valid = d.last[o.key].valid
						e.object = e.valid
					}
				}
				next[o.key] = e
				if e.object.mirrorOf != "" {
					mirrored[model.Name{Namespace: o.name.Namespace, Name: e.object.mirrorOf}] = true
				}
				if o.kind == "Endpoints" {
					endpoints = append(endpoints, e)
				} else {
					report(e.problems, rel, doc.Line, e.object != o)
				}
			}
		}
	}
	for _, e := range endpoints {
		svc := next[key{"Service", e.object.name}]
		if svc == nil || svc.object.selector || mirrored[e.object.name] {
			continue // a cluster would not mirror it, or has already done so
		}
		report(e.problems, e.file, e.line, e.problems != &e.object.problems)
		for _, s := range e.object.mirror {
			next[s.key] = &entry{object: s, file: e.file, line: e.line}
		}
	}
	changes := d.diff(next)
	d.last = next
	var problems []source.Problem
	for _, file := range slices.Sorted(maps.Keys(reports)) {
		problems = append(problems, reports[file].limited(file)...)
	}
	return changes, problems
}

// diff returns the differences to the last merge. It adds to next what stays although no file has it any more: until the
// files have been read that had changed by then, because they may have it.
func (d *directory) diff(next map[key]*entry) []model.Change {
	var out []model.Change
	for k, e := range next {
		old := d.last[k]
		switch {
		case old == nil && e.object.exists(), old != nil && old.object != e.object && !equal(&old.object.change, &e.object.change):
			out = append(out, e.object.change)
		}
	}
	vanished := map[key]int{}
	oldest, pending := d.oldest()
	for k, e := range d.last {
		if next[k] != nil || !e.object.exists() {
			continue
		}
		scan, known := d.vanished[k]
		if !known {
			scan = d.scans
		}
		if pending && scan >= oldest {
			next[k], vanished[k] = e, scan
			continue
		}
		out = append(out, model.Change{Kind: e.object.change.Kind, Group: e.object.change.Group, Name: e.object.change.Name})
	}
	d.vanished = vanished
	slices.SortFunc(out, func(a, b model.Change) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), a.Name.Compare(b.Name))
	})
	return out
}

// exists reports whether an object has a value.
func (o *object) exists() bool {
	c := &o.change
	return c.Service != nil || c.Slice != nil || c.Node != nil || c.CIDR != nil || c.Pod != nil || c.Namespace != nil || c.Object != nil
}

// equal reports whether two versions of an object are equal. Trigger times of slices are ignored.
func equal(a, b *model.Change) bool {
	if a.Kind == model.SliceKind {
		return a.Slice.SameContent(b.Slice)
	}
	return reflect.DeepEqual(a, b)
}
