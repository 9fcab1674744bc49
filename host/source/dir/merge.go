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
	object *object // in use
	read   *object // the version in the file
	file   string
	line   int
	missed bool // the last merge did not find it
}

// merger collects the objects and problems of the files.
type merger struct {
	last, next map[key]*entry
	reports    map[string]*problemList // by file
	mirrored   map[model.Name]bool     // Services with an EndpointSlice that a cluster has mirrored
	endpoints  []*entry
}

// merge returns the changes since the last merge, sorted by kind and name, and the current problems, sorted by file and
// limited per file. Of duplicate objects the first one in the order of files and documents is used. An object with an
// invalid field is used without that field if it is new; otherwise its last valid version is used. again: some objects are
// missing for the first time, so that the next merge is to decide about them.
func (d *directory) merge() (changes []model.Change, problems []source.Problem, again bool) {
	m := &merger{last: d.last, next: make(map[key]*entry, len(d.last)), reports: map[string]*problemList{}, mirrored: map[model.Name]bool{}}
	for _, p := range slices.Concat(d.problems.errors, d.problems.warnings) {
		m.of(p.File).add(p)
	}
	m.of("").addAll(&problemList{moreErrors: d.problems.moreErrors, moreWarnings: d.problems.moreWarnings}, "", 0, false)
	for _, rel := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[rel]
		if f.gone {
			continue
		}
		if f.problem != nil {
			m.of(rel).add(*f.problem)
		}
		for _, doc := range f.docs {
			m.addAll(&doc.problems, rel, doc.Line, false)
			for _, o := range doc.objects {
				m.add(o, rel, doc.Line)
			}
		}
	}
	m.mirror()
	changes, again = m.diff()
	d.last = m.next
	for _, file := range slices.Sorted(maps.Keys(m.reports)) {
		problems = append(problems, m.reports[file].limited(file)...)
	}
	return changes, problems, again
}

// of returns the problems of a file.
func (m *merger) of(file string) *problemList {
	if m.reports[file] == nil {
		m.reports[file] = &problemList{}
	}
	return m.reports[file]
}

func (m *merger) addAll(part *problemList, file string, line int, kept bool) {
	if !part.isEmpty() {
		m.of(file).addAll(part, file, line, kept)
	}
}

func (m *merger) add(o *object, file string, line int) {
	if first := m.next[o.key]; first != nil {
		err := fmt.Errorf("duplicate of the object in %s:%d, which is used", first.file, first.line)
		m.of(file).add(source.Problem{File: file, Line: line, Object: o.title(), Err: err})
		return
	}
	e := &entry{object: o, read: o, file: file, line: line}
	if old := m.last[o.key]; len(o.problems.errors) > 0 && old != nil && len(old.object.problems.errors) == 0 {
		e.object = old.object
	}
	m.next[o.key] = e
	if e.object.mirrorOf != "" {
		m.mirrored[model.Name{Namespace: o.name.Namespace, Name: e.object.mirrorOf}] = true
	}
	if o.kind == "Endpoints" {
		m.endpoints = append(m.endpoints, e)
	} else {
		m.addAll(&o.problems, file, line, e.object != o)
	}
}

// mirror adds the EndpointSlices of Endpoints that a cluster would mirror and has not.
func (m *merger) mirror() {
	for _, e := range m.endpoints {
		svc := m.next[key{"Service", e.object.name}]
		if svc == nil || svc.object.selector || m.mirrored[e.object.name] {
			continue
		}
		m.addAll(&e.read.problems, e.file, e.line, e.object != e.read)
		for _, s := range e.object.mirror {
			m.next[s.key] = &entry{object: s, file: e.file, line: e.line}
		}
	}
}

// diff returns the differences to the last merge. An object is removed if two merges miss it: a file that is written or
// replaced in the meantime has it again.
func (m *merger) diff() (out []model.Change, again bool) {
	for k, e := range m.next {
		old := m.last[k]
		switch {
		case old == nil && e.object.exists(), old != nil && old.object != e.object && !equal(&old.object.change, &e.object.change):
			out = append(out, e.object.change)
		}
	}
	for k, e := range m.last {
		switch {
		case m.next[k] != nil || !e.object.exists():
		case !e.missed:
			kept := *e
			kept.missed = true
			m.next[k], again = &kept, true
		default:
			out = append(out, model.Change{Kind: e.object.change.Kind, Group: e.object.change.Group, Name: e.object.change.Name})
		}
	}
	slices.SortFunc(out, func(a, b model.Change) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), a.Name.Compare(b.Name))
	})
	return out, again
}

// exists reports whether an object has a value.
func (o *object) exists() bool {
	c := &o.change
	return c.Service != nil || c.Slice != nil || c.Node != nil || c.CIDR != nil || c.Pod != nil || c.Namespace != nil || c.Load != nil || c.Object != nil || c.Route != nil
}

// equal reports whether two versions of an object are equal. Trigger times of slices are ignored.
func equal(a, b *model.Change) bool {
	if a.Kind == model.SliceKind {
		return a.Slice.SameContent(b.Slice)
	}
	return reflect.DeepEqual(a, b)
}
