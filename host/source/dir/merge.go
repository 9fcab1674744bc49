package dir

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// state is the model of a whole directory.
type state struct {
	services map[model.Name]*model.Service
	slices   map[model.Name]*model.EndpointSlice
	nodes    map[model.Name]*model.Node
	cidrs    map[model.Name]*model.ServiceCIDR
	pods     map[model.Name]*model.Pod
}

// location is an object with its position.
type location struct {
	object       *object
	file         string
	line         int
	keptPrevious bool // object is the last valid version instead of the current, invalid one
	problems     *problemList
}

// objectKey identifies an object in a directory.
type objectKey struct {
	kind string
	name model.Name
}

func (p location) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// merge returns the changes since the last merge, sorted by kind and name, and the current problems, sorted by file and
// limited per file. Of duplicate objects the first one in the order of files and documents is used. An object with an
// invalid field is used without that field if it is new; otherwise its last valid version is used.
func (f *directory) merge() ([]model.Change, []source.Problem) {
	problems := slices.Clone(f.scanProblems)
	omittedByFile := map[string]omitted{}
	count := func(file string, b *problemList) {
		r := omittedByFile[file]
		r.add(b.omitted())
		omittedByFile[file] = r
	}
	seen := map[objectKey]*location{}
	var order []*location
	nextGood := map[objectKey]*object{}
	for _, rel := range slices.Sorted(maps.Keys(f.files)) {
		m := f.files[rel]
		if m.problem != nil {
			problems = append(problems, *m.problem)
		}
		for _, d := range m.docs {
			problems = append(problems, withLocation(d.problems.list, rel, d.line)...)
			count(rel, &d.problems)
			for _, o := range d.objects {
				k := objectKey{o.kind, o.name}
				loc := &location{object: o, file: rel, line: d.line, problems: &o.problems}
				if first, dup := seen[k]; dup {
					problems = append(problems, source.Problem{
						File: rel, Line: d.line, Object: objectTitle(o.kind, o.name), Err: fmt.Errorf("duplicate of the object in %s, which is used", first),
					})
					continue
				}
				if !o.hasErrors() {
					nextGood[k] = o
				} else if last := f.lastGood[k]; last != nil {
					nextGood[k], loc.object, loc.keptPrevious = last, last, true
				}
				seen[k] = loc
				order = append(order, loc)
			}
		}
	}
	keep := f.keepVanished(nextGood)
	f.lastGood = nextGood
	next := state{
		map[model.Name]*model.Service{}, map[model.Name]*model.EndpointSlice{}, map[model.Name]*model.Node{},
		map[model.Name]*model.ServiceCIDR{}, map[model.Name]*model.Pod{},
	}
	mirrored := map[model.Name]bool{}
	for _, p := range order {
		o := p.object
		switch {
		case o.service != nil:
			next.services[o.name] = o.service
		case o.slice != nil:
			next.slices[o.name] = o.slice
		case o.node != nil:
			next.nodes[o.name] = o.node
		case o.cidr != nil:
			next.cidrs[o.name] = o.cidr
		case o.pod != nil:
			next.pods[o.name] = o.pod
		}
		if o.mirrorOf != "" {
			mirrored[model.Name{Namespace: o.name.Namespace, Name: o.mirrorOf}] = true
		}
	}
	for _, p := range order {
		if p.object.kind == "Endpoints" {
			svc, has := seen[objectKey{"Service", p.object.name}]
			if !has || svc.object.selector || mirrored[p.object.name] {
				continue // a cluster would not mirror it, or has already done so
			}
			for _, s := range p.object.mirror {
				next.slices[s.Name] = s
			}
		}
		objectProblems := withLocation(p.problems.list, p.file, p.line)
		count(p.file, p.problems)
		if p.keptPrevious {
			source.NotePreviousKept(objectProblems)
		}
		problems = append(problems, objectProblems...)
	}
	slices.SortStableFunc(problems, func(a, b source.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	problems = limitPerFile(problems, omittedByFile)

	changes := diff(f.last.services, next.services, keep("Service"), func(n model.Name, v *model.Service) model.Change {
		return model.Change{Kind: model.ServiceKind, Name: n, Service: v}
	})
	changes = append(changes, diff(f.last.slices, next.slices, keep("EndpointSlice"), func(n model.Name, v *model.EndpointSlice) model.Change {
		return model.Change{Kind: model.SliceKind, Name: n, Slice: v}
	})...)
	changes = append(changes, diff(f.last.nodes, next.nodes, keep("Node"), func(n model.Name, v *model.Node) model.Change {
		return model.Change{Kind: model.NodeKind, Name: n, Node: v}
	})...)
	changes = append(changes, diff(f.last.cidrs, next.cidrs, keep("ServiceCIDR"), func(n model.Name, v *model.ServiceCIDR) model.Change {
		return model.Change{Kind: model.ServiceCIDRKind, Name: n, CIDR: v}
	})...)
	changes = append(changes, diff(f.last.pods, next.pods, keep("Pod"), func(n model.Name, v *model.Pod) model.Change {
		return model.Change{Kind: model.PodKind, Name: n, Pod: v}
	})...)
	f.last = next
	return changes, problems
}

// hasErrors reports whether a part of the object could not be used.
func (o *object) hasErrors() bool {
	return o.problems.errors > 0
}

// keepVanished returns which objects of a kind that no file has any more stay until the files have been read that a scan has left for later. It
// adds the last good ones of them to good.
func (f *directory) keepVanished(good map[objectKey]*object) func(kind string) func(model.Name) bool {
	before, beforeGood := f.vanished, f.lastGood
	f.vanished = map[objectKey]int{}
	oldest, pending := f.late.oldest()
	return func(kind string) func(model.Name) bool {
		return func(n model.Name) bool {
			k := objectKey{kind, n}
			if !pending {
				return false
			}
			scan, known := before[k]
			if !known {
				scan = f.late.scans
			}
			if scan < oldest {
				return false
			}
			f.vanished[k] = scan
			if o := beforeGood[k]; o != nil {
				good[k] = o
			}
			return true
		}
	}
}

// diff returns the differences of two maps, sorted by name, and adds to next what keep tells to keep. A nil value in a change means that
// the object was deleted.
func diff[T any](prev, next map[model.Name]*T, keep func(model.Name) bool, change func(model.Name, *T) model.Change) []model.Change {
	var out []model.Change
	for n, v := range next {
		if old := prev[n]; old == v || old != nil && equalValues(old, v) {
			continue
		}
		out = append(out, change(n, v))
	}
	for n, v := range prev {
		switch {
		case next[n] != nil:
		case keep(n):
			next[n] = v
		default:
			out = append(out, change(n, nil))
		}
	}
	slices.SortFunc(out, func(a, b model.Change) int { return a.Name.Compare(b.Name) })
	return out
}

// equalValues reports whether two objects are equal. Trigger times of slices are ignored.
func equalValues[T any](a, b *T) bool {
	if s, ok := any(a).(*model.EndpointSlice); ok {
		return s.SameContent(any(b).(*model.EndpointSlice))
	}
	return reflect.DeepEqual(a, b)
}

func withLocation(problems []source.Problem, file string, line int) []source.Problem {
	out := slices.Clone(problems)
	for i := range out {
		out[i].File, out[i].Line = file, line
	}
	return out
}
