package recording

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// Encoder writes a recording. It has the cluster state as of the last record. After an error it must not be used any more.
type Encoder struct {
	out     *counter
	zip     *gzip.Writer
	buffer  bytes.Buffer
	json    *json.Encoder
	cluster *model.Snapshot
	keep    Keep
	at      int64
	// counters are those of the last reading that the reader knows; nil: none.
	counters map[model.EndpointKey]outcomes.Counters
}

// counter counts the bytes that are written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// maxPerLine is the number of objects in a line of a state.
const maxPerLine = 16

// NewEncoder begins a recording with a cluster state that is complete, which the Encoder modifies from then on.
func NewEncoder(w io.Writer, h Header, at time.Time, cluster *model.Snapshot, keep Keep, lost uint64) (*Encoder, error) {
	e := &Encoder{out: &counter{w: w}, cluster: cluster}
	e.zip = gzip.NewWriter(e.out)
	e.json = json.NewEncoder(&e.buffer)
	e.json.SetEscapeHTML(false)
	h.Format = Format
	if err := e.write(h); err != nil {
		return nil, err
	}
	return e, e.State(at, keep, lost)
}

// Size returns the bytes that have been written. Flush writes what is still in memory.
func (e *Encoder) Size() int64 { return e.out.n }

// Cluster returns the cluster state as of the last record, for State after changes that are not recorded one by one.
func (e *Encoder) Cluster() *model.Snapshot { return e.cluster }

// State writes the whole cluster state. lost is the number of changes since the last record that have not been written.
func (e *Encoder) State(at time.Time, keep Keep, lost uint64) error {
	e.keep, e.counters = keep, nil
	state := &wireState{Keep: keep, Lost: lost}
	var pending []wireChange
	flush := func(more bool) error {
		err := e.line(at, line{State: state, Changes: pending, More: more})
		state, pending = nil, pending[:0]
		return err
	}
	for c := range stateOf(e.cluster) {
		pending = append(pending, e.change(&c, nil))
		if len(pending) == maxPerLine {
			if err := flush(true); err != nil {
				return err
			}
		}
	}
	return flush(false)
}

// stateOf returns the changes that make an empty snapshot equal to s, in a fixed order.
func stateOf(s *model.Snapshot) func(func(model.Change) bool) {
	return func(yield func(model.Change) bool) {
		all := []model.Change{{Kind: model.NodesPartialKind, Value: s.NodesPartial}, {Kind: model.PodsOnDemandKind, Value: s.PodsOnDemand}}
		if s.NodeLabels.OnDemand {
			all = append(all, model.Change{Kind: model.NodeLabelsKind, Read: s.NodeLabels.Names})
		}
		if s.NamespaceLabels.OnDemand {
			all = append(all, model.Change{Kind: model.NamespaceLabelsKind, Read: s.NamespaceLabels.Names})
		}
		if s.LoadRead.OnDemand {
			all = append(all, model.Change{Kind: model.LoadReadKind, Read: s.LoadRead.Names})
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.Loads), model.Name.Compare) {
			all = append(all, model.Change{Kind: model.LoadKind, Name: name, Load: s.Loads[name]})
		}
		for _, name := range slices.Sorted(maps.Keys(s.Namespaces)) {
			all = append(all, model.Change{Kind: model.NamespaceKind, Name: model.Name{Namespace: name}, Namespace: s.Namespaces[name]})
		}
		for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
			all = append(all, model.Change{Kind: model.NodeKind, Name: model.Name{Name: name}, Node: s.Nodes[name]})
		}
		for _, name := range slices.Sorted(maps.Keys(s.CIDRs)) {
			all = append(all, model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: name}, CIDR: s.CIDRs[name]})
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.Routes), compareObjects) {
			all = append(all, model.Change{Kind: model.RouteKind, Group: name.Kind, Name: name.Name, Route: s.Routes[name]})
		}
		for _, c := range all {
			if !yield(c) {
				return
			}
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.Pods), model.Name.Compare) {
			if !yield(model.Change{Kind: model.PodKind, Name: name, Pod: s.Pods[name]}) {
				return
			}
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.Services), model.Name.Compare) {
			if !yield(model.Change{Kind: model.ServiceKind, Name: name, Service: s.Services[name]}) {
				return
			}
			if state := s.PodsOf(name); s.PodsOnDemand && state != model.PodsPending && !yield(model.Change{Kind: model.PodsReadKind, Name: name, Pods: state}) {
				return
			}
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.Slices), model.Name.Compare) {
			for _, slice := range s.Slices[name] {
				if !yield(model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: slice}) {
					return
				}
			}
		}
	}
}

// Changes writes changes that were planned together.
func (e *Encoder) Changes(at time.Time, changes []model.Change) error {
	var pending []wireChange
	for i := range changes {
		c := &changes[i]
		if c.Kind != model.Synced {
			pending = append(pending, e.change(c, e.cluster.Slice(c.Name)))
		}
		e.cluster.Apply(*c)
		if len(pending) == maxPerLine && i < len(changes)-1 {
			if err := e.line(at, line{Changes: pending, More: true}); err != nil {
				return err
			}
			pending = pending[:0]
		}
	}
	return e.line(at, line{Changes: pending})
}

// change returns the form of a change. old is the slice that the reader has, nil for none.
func (e *Encoder) change(c *model.Change, old *model.EndpointSlice) (w wireChange) {
	switch {
	case c.Kind == model.NodesPartialKind:
		w.Nodes = &c.Value
	case c.Kind == model.PodsOnDemandKind:
		w.PodsOnDemand = &c.Value
	case c.Kind == model.PodsReadKind:
		w.Pods = &wirePods{c.Name, c.Pods}
	case c.Kind == model.NodeLabelsKind:
		w.NodeLabels = list(c.Read)
	case c.Kind == model.NamespaceLabelsKind:
		w.NamespaceLabels = list(c.Read)
	case c.Kind == model.LoadReadKind:
		w.LoadRead = list(c.Read)
	case c.Load != nil:
		w.Load = &wireLoad{Service: c.Name, Values: map[netip.Addr]map[string]string{}}
		for addr, values := range c.Load.Values {
			if kept := only(values, e.keep.Load); kept != nil {
				w.Load.Values[addr] = kept
			}
		}
	case c.Namespace != nil:
		w.Namespace = &model.Namespace{Name: c.Namespace.Name, Labels: only(c.Namespace.Labels, e.keep.NamespaceLabels)}
	case c.Service != nil:
		w.Service = &wireService{Service: *c.Service, Annotations: []byte(c.Service.Annotations.Only(e.keep.ServiceAnnotations))}
	case c.Slice != nil:
		w.Slice = sliceOf(c.Slice, old)
	case c.Node != nil:
		w.Node = c.Node
	case c.CIDR != nil:
		w.CIDR = c.CIDR
	case c.Route != nil:
		w.Route = c.Route
	case c.Pod != nil:
		p := *c.Pod
		p.Labels, p.Annotations = only(p.Labels, e.keep.PodLabels), only(p.Annotations, e.keep.PodAnnotations)
		w.Pod = &p
	default:
		w.Deleted = &wireDeleted{c.Kind, c.Group, c.Name.Namespace, c.Name.Name}
	}
	return w
}

func compareObjects(a, b model.ObjectName) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
}

// list returns a list that is not null in JSON: an empty one is not the same as none.
func list(names []string) *[]string {
	out := append([]string{}, names...)
	return &out
}

// only returns the entries with one of the keys.
func only(all map[string]string, keys []string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		if v, ok := all[key]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = v
		}
	}
	return out
}

// sliceOf returns the form of a slice: what differs from old if not much does.
func sliceOf(s, old *model.EndpointSlice) *wireSlice {
	w := &wireSlice{Name: s.Name, Trigger: s.Trigger, Version: s.Version}
	if old != nil && old.Service == s.Service && old.Family == s.Family && slices.Equal(old.Ports, s.Ports) {
		w.Patch = true
		shorter := min(len(s.Endpoints), len(old.Endpoints))
		for w.Head < shorter && sameEndpoint(&s.Endpoints[w.Head], &old.Endpoints[w.Head]) {
			w.Head++
		}
		for w.Tail < shorter-w.Head && sameEndpoint(&s.Endpoints[len(s.Endpoints)-1-w.Tail], &old.Endpoints[len(old.Endpoints)-1-w.Tail]) {
			w.Tail++
		}
	} else {
		w.Service, w.Family, w.Ports = s.Service.Name, s.Family, s.Ports
	}
	for i := w.Head; i < len(s.Endpoints)-w.Tail; i++ {
		w.Endpoints = append(w.Endpoints, wireEndpoint(s.Endpoints[i]))
	}
	return w
}

func sameEndpoint(a, b *model.SliceEndpoint) bool {
	x, y := *a, *b
	x.Hints, y.Hints = nil, nil
	return x == y && (a.Hints == b.Hints || reflect.DeepEqual(a.Hints, b.Hints))
}

// Reading writes a reading of outcomes.
func (e *Encoder) Reading(at time.Time, r *Reading) error {
	w := &wireReading{Kind: r.Kind, Interval: r.Interval, All: e.counters == nil}
	if r.Kind == Read {
		for key, n := range r.Counters {
			if old, ok := e.counters[key]; !ok || old != n {
				w.Changed = append(w.Changed, wireCount{key.Addr, key.Protocol, []uint64{n.Attempts, n.Answered, n.Refused}})
			}
		}
		if !w.All {
			for key := range e.counters {
				if _, ok := r.Counters[key]; !ok {
					w.Gone = append(w.Gone, wireCount{Addr: key.Addr, Protocol: key.Protocol})
				}
			}
		}
		sortCounts(w.Changed)
		sortCounts(w.Gone)
		e.counters = maps.Clone(r.Counters)
		if e.counters == nil {
			e.counters = map[model.EndpointKey]outcomes.Counters{}
		}
	}
	return e.line(at, line{Reading: w})
}

// Open writes a count of open connections; nil: they are not counted any more.
func (e *Encoder) Open(at time.Time, open map[model.EndpointKey]uint32) error {
	l := line{Counted: open != nil, Closed: open == nil}
	for key, n := range open {
		l.Open = append(l.Open, wireCount{key.Addr, key.Protocol, []uint64{uint64(n)}})
	}
	sortCounts(l.Open)
	return e.line(at, l)
}

func sortCounts(list []wireCount) {
	slices.SortFunc(list, func(a, b wireCount) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol)) })
}

// Flush writes what is in memory, and that nothing else has happened until then.
func (e *Encoder) Flush(at time.Time) error {
	if err := e.line(at, line{}); err != nil {
		return err
	}
	return e.zip.Flush()
}

// Close ends the recording. It does not close the underlying writer.
func (e *Encoder) Close(at time.Time) error {
	return errors.Join(e.line(at, line{End: true}), e.zip.Close())
}

// line writes a line. Time does not run backwards.
func (e *Encoder) line(at time.Time, l line) error {
	e.at = max(e.at, at.UnixNano())
	l.At = e.at
	return e.write(l)
}

func (e *Encoder) write(v any) error {
	e.buffer.Reset()
	if err := e.json.Encode(v); err != nil {
		return fmt.Errorf("recording: %w", err)
	}
	if e.buffer.Len() > maxLine {
		return fmt.Errorf("recording: a record of %d bytes, at most %d are allowed", e.buffer.Len(), maxLine)
	}
	_, err := e.zip.Write(e.buffer.Bytes())
	return err
}
