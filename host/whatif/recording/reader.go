package recording

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// Reader reads a recording.
type Reader struct {
	Header Header
	lines  *bufio.Reader
	text   []byte
	n      int // of the last line, from 1
	first  int64
	at     int64
	// objects has a count of endpoints for slices, 0 for other objects.
	objects   map[object]int
	slices    map[model.Name]*model.EndpointSlice
	endpoints int
	counters  map[model.EndpointKey]outcomes.Counters
	ended     bool
	err       error
}

type object struct {
	kind  model.Kind
	group string
	name  model.Name
}

// ErrTruncated is the error of Next where a recording ends within a record, or without having been closed: the process that wrote
// it has been killed, or still writes it.
var ErrTruncated = errors.New("the recording has not been closed: what follows is missing")

// NewReader reads the header.
func NewReader(r io.Reader) (*Reader, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a recording of sluice run --record: %w", err)
	}
	out := &Reader{lines: bufio.NewReaderSize(zip, 64<<10)}
	text, err := out.line()
	if err != nil {
		return nil, fmt.Errorf("not a recording of sluice run --record: %w", err)
	}
	if err := json.Unmarshal(text, &out.Header); err != nil || out.Header.Format == 0 {
		return nil, errors.New("not a recording of sluice run --record: no header")
	}
	if out.Header.Format != Format {
		return nil, fmt.Errorf("a recording in format %d: this sluice reads format %d", out.Header.Format, Format)
	}
	return out, nil
}

// line returns the next line without its end. It is valid until the next call.
func (r *Reader) line() ([]byte, error) {
	r.text = r.text[:0]
	for {
		part, err := r.lines.ReadSlice('\n')
		if len(r.text)+len(part) > maxLine {
			return nil, fmt.Errorf("line %d: more than %d bytes", r.n+1, maxLine)
		}
		r.text = append(r.text, part...)
		switch {
		case err == nil:
			r.n++
			return r.text[:len(r.text)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF) && len(r.text) > 0:
			return nil, ErrTruncated
		default:
			return nil, err
		}
	}
}

// Next returns the next record. The error is io.EOF after the last one, ErrTruncated if the recording ends too early: what has
// been returned is good. The Record is valid until the next call, its objects are forever.
func (r *Reader) Next() (*Record, error) {
	if r.err != nil {
		return nil, r.err
	}
	out, err := r.next()
	r.err = err
	return out, err
}

func (r *Reader) next() (*Record, error) {
	out := &Record{}
	for first := true; ; first = false {
		text, err := r.line()
		switch {
		case errors.Is(err, io.EOF) && r.ended && first:
			return nil, io.EOF
		case errors.Is(err, io.EOF):
			return nil, ErrTruncated
		case err != nil:
			return nil, err
		case r.ended:
			return nil, fmt.Errorf("line %d: after the end", r.n)
		}
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", r.n, err)
		}
		if err := r.add(out, &l, first); err != nil {
			return nil, fmt.Errorf("line %d: %w", r.n, err)
		}
		if !l.More {
			return out, nil
		}
	}
}

// add adds a line to a record.
func (r *Reader) add(out *Record, l *line, first bool) error {
	switch {
	case r.first == 0 && l.State == nil:
		return errors.New("there is no state before it")
	case !first && (l.At != r.at || l.State != nil):
		return errors.New("want the rest of the record before it")
	case l.At <= 0 || l.At < r.at:
		return errors.New("time runs backwards")
	case r.first != 0 && time.Duration(l.At-r.first) > maxDuration:
		return fmt.Errorf("more than %s after the beginning", maxDuration)
	}
	if r.first == 0 {
		r.first = l.At
	}
	r.at, out.At, out.End = l.At, time.Unix(0, l.At), l.End
	r.ended, out.Closed = l.End, l.Closed
	if s := l.State; s != nil {
		if len(s.PodLabels)+len(s.PodAnnotations)+len(s.ServiceAnnotations)+len(s.NamespaceLabels)+len(s.Load) > maxKeys {
			return fmt.Errorf("more than %d keys", maxKeys)
		}
		out.State, out.Keep, out.Lost = true, s.Keep, s.Lost
		r.objects, r.slices, r.endpoints = map[object]int{}, map[model.Name]*model.EndpointSlice{}, 0
		r.counters = nil
	}
	for i := range l.Changes {
		c, err := r.change(&l.Changes[i])
		if err != nil {
			return err
		}
		if err := r.count(&c); err != nil {
			return err
		}
		out.Changes = append(out.Changes, c)
		if len(out.Changes) > 2*maxObjects {
			return fmt.Errorf("more than %d changes in a record", 2*maxObjects)
		}
	}
	if out.State && !l.More {
		out.Changes = append(out.Changes, model.Change{Kind: model.Synced})
	}
	if l.Reading != nil {
		var err error
		if out.Reading, err = r.reading(l.Reading); err != nil {
			return err
		}
	}
	if l.Counted {
		out.Open = make(map[model.EndpointKey]uint32, min(len(l.Open), maxCounters))
		for i := range l.Open {
			c := &l.Open[i]
			if len(c.N) != 1 || c.N[0] > 1<<32-1 || len(out.Open) == maxCounters {
				return fmt.Errorf("open connections of %s: want one number, of at most %d endpoints", c.Addr, maxCounters)
			}
			out.Open[c.key()] = uint32(c.N[0])
		}
	}
	return nil
}

// count keeps the number of objects within its limits.
func (r *Reader) count(c *model.Change) error {
	key := object{c.Kind, c.Group, c.Name}
	before, known := r.objects[key]
	r.endpoints -= before
	switch {
	case c.Kind == model.NodesPartialKind, c.Kind == model.PodsReadKind, c.Kind == model.PodsOnDemandKind,
		c.Kind == model.NodeLabelsKind, c.Kind == model.NamespaceLabelsKind, c.Kind == model.LoadReadKind:
		return nil
	case c.Service == nil && c.Slice == nil && c.Node == nil && c.CIDR == nil && c.Pod == nil && c.Namespace == nil && c.Load == nil && c.Route == nil:
		delete(r.objects, key)
		if c.Kind == model.SliceKind {
			delete(r.slices, c.Name)
		}
		return nil
	case !known && len(r.objects) == maxObjects:
		return fmt.Errorf("more than %d objects", maxObjects)
	}
	n := 0
	if c.Slice != nil {
		n, r.slices[c.Name] = len(c.Slice.Endpoints), c.Slice
	}
	if c.Load != nil {
		n = len(c.Load.Values)
	}
	r.objects[key] = n
	if r.endpoints += n; r.endpoints > maxEndpoints {
		return fmt.Errorf("more than %d endpoints", maxEndpoints)
	}
	return nil
}

func (r *Reader) change(w *wireChange) (c model.Change, err error) {
	switch {
	case w.Service != nil:
		s := w.Service.Service
		s.Annotations = model.Annotations(w.Service.Annotations)
		c = model.Change{Kind: model.ServiceKind, Name: s.Name, Service: &s}
	case w.Slice != nil:
		c = model.Change{Kind: model.SliceKind, Name: w.Slice.Name}
		c.Slice, err = r.slice(w.Slice)
	case w.Node != nil:
		c = model.Change{Kind: model.NodeKind, Name: model.Name{Name: w.Node.Name}, Node: w.Node}
	case w.CIDR != nil:
		c = model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: w.CIDR.Name}, CIDR: w.CIDR}
	case w.Route != nil:
		if len(w.Route.Parents)+len(w.Route.Backends) > maxRouteRefs {
			return c, fmt.Errorf("%s %s: more than %d parents and backends", w.Route.Name.Kind, w.Route.Name.Name, maxRouteRefs)
		}
		c = model.Change{Kind: model.RouteKind, Group: w.Route.Name.Kind, Name: w.Route.Name.Name, Route: w.Route}
	case w.Pod != nil:
		c = model.Change{Kind: model.PodKind, Name: w.Pod.Name, Pod: w.Pod}
	case w.Namespace != nil:
		c = model.Change{Kind: model.NamespaceKind, Name: model.Name{Namespace: w.Namespace.Name}, Namespace: w.Namespace}
	case w.Load != nil:
		c = model.Change{Kind: model.LoadKind, Name: w.Load.Service, Load: &model.EndpointLoad{Values: w.Load.Values}}
	case w.LoadRead != nil:
		c = model.Change{Kind: model.LoadReadKind, Read: slices.Sorted(slices.Values(*w.LoadRead))}
	case w.NodeLabels != nil:
		c = model.Change{Kind: model.NodeLabelsKind, Read: slices.Sorted(slices.Values(*w.NodeLabels))}
	case w.NamespaceLabels != nil:
		c = model.Change{Kind: model.NamespaceLabelsKind, Read: slices.Sorted(slices.Values(*w.NamespaceLabels))}
	case w.Nodes != nil:
		c = model.Change{Kind: model.NodesPartialKind, Value: *w.Nodes}
	case w.PodsOnDemand != nil:
		c = model.Change{Kind: model.PodsOnDemandKind, Value: *w.PodsOnDemand}
	case w.Pods != nil:
		if w.Pods.State > model.PodsUnavailable || w.Pods.Service == (model.Name{}) {
			return c, fmt.Errorf("Pods of %s: state %d is unknown", w.Pods.Service, w.Pods.State)
		}
		c = model.Change{Kind: model.PodsReadKind, Name: w.Pods.Service, Pods: w.Pods.State}
	case w.Deleted != nil:
		switch w.Deleted.Kind {
		case model.ServiceKind, model.SliceKind, model.NodeKind, model.ServiceCIDRKind, model.PodKind, model.NamespaceKind, model.RouteKind, model.LoadKind:
		default:
			return c, fmt.Errorf("deleted %s: kind %d is unknown", w.Deleted.Name, w.Deleted.Kind)
		}
		c = model.Change{Kind: w.Deleted.Kind, Group: w.Deleted.Group, Name: model.Name{Namespace: w.Deleted.Namespace, Name: w.Deleted.Name}}
	default:
		err = errors.New("a change of nothing")
	}
	return c, err
}

func (r *Reader) slice(w *wireSlice) (*model.EndpointSlice, error) {
	out := &model.EndpointSlice{Name: w.Name, Trigger: w.Trigger, Version: w.Version}
	var before []model.SliceEndpoint
	if w.Patch {
		old := r.slices[w.Name]
		if old == nil {
			return nil, fmt.Errorf("EndpointSlice %s: there is none to change", w.Name)
		}
		out.Service, out.Family, out.Ports, before = old.Service, old.Family, old.Ports, old.Endpoints
	} else {
		out.Service, out.Family, out.Ports = model.Name{Namespace: w.Name.Namespace, Name: w.Service}, w.Family, w.Ports
	}
	if w.Head < 0 || w.Tail < 0 || w.Head > len(before) || w.Tail > len(before)-w.Head {
		return nil, fmt.Errorf("EndpointSlice %s: it does not have %d and %d endpoints", w.Name, w.Head, w.Tail)
	}
	n := w.Head + len(w.Endpoints) + w.Tail
	if n > maxInSlice {
		return nil, fmt.Errorf("EndpointSlice %s: more than %d endpoints", w.Name, maxInSlice)
	}
	if n == 0 {
		return out, nil
	}
	out.Endpoints = append(make([]model.SliceEndpoint, 0, n), before[:w.Head]...)
	for i := range w.Endpoints {
		if !w.Endpoints[i].Addr.IsValid() {
			return nil, fmt.Errorf("EndpointSlice %s: an endpoint without an address", w.Name)
		}
		out.Endpoints = append(out.Endpoints, model.SliceEndpoint(w.Endpoints[i]))
	}
	out.Endpoints = append(out.Endpoints, before[len(before)-w.Tail:]...)
	return out, nil
}

func (r *Reader) reading(w *wireReading) (*Reading, error) {
	out := &Reading{Kind: w.Kind, Interval: w.Interval}
	switch w.Kind {
	case Begun, Stopped, Rebased:
		return out, nil
	case Read:
	default:
		return nil, fmt.Errorf("outcomes: kind %q is unknown", w.Kind)
	}
	if w.All || r.counters == nil {
		r.counters = map[model.EndpointKey]outcomes.Counters{}
	}
	for i := range w.Gone {
		delete(r.counters, w.Gone[i].key())
	}
	for i := range w.Changed {
		c := &w.Changed[i]
		if len(c.N) != 3 || len(r.counters) == maxCounters {
			return nil, fmt.Errorf("outcomes of %s: want three numbers, of at most %d endpoints", c.Addr, maxCounters)
		}
		r.counters[c.key()] = outcomes.Counters{Attempts: c.N[0], Answered: c.N[1], Refused: c.N[2]}
	}
	out.Counters = r.counters
	return out, nil
}
