package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// MaxCountedEndpoints bounds the endpoints of a family whose connections are counted. See the README for what one takes.
const MaxCountedEndpoints = 1 << 14

// countedEndpoints are the endpoints whose connections are counted, with the number of frontends that want that. They
// are added with the frontend that is the first to want it, and deleted when all frontends of a change are written, so
// that an endpoint that moves between frontends keeps its counters.
type countedEndpoints struct {
	refs    map[model.EndpointKey]countedRef
	wanted  int                 // endpoints with references
	listed  int                 // endpoints in the kernel
	touched []model.EndpointKey // to be added if wanted
	idle    []model.EndpointKey // to be deleted if not wanted
	waiting waitingEndpoints    // wanted, and beyond MaxCountedEndpoints
	// readings has an entry for each endpoint in the kernel, at countedRef.reading, and unused ones.
	readings []reading
	unused   []int32
}

// waitingEndpoints is a queue of endpoints. Its cost does not depend on its length.
type waitingEndpoints struct {
	set   map[model.EndpointKey]bool
	queue []model.EndpointKey // oldest first; may contain endpoints that are no longer in set
}

func (w *waitingEndpoints) push(k model.EndpointKey) {
	if w.set[k] {
		return
	}
	w.set[k], w.queue = true, append(w.queue, k)
	if len(w.queue) > 64+2*len(w.set) { // endpoints that left and came back
		seen := map[model.EndpointKey]bool{}
		w.queue = slices.DeleteFunc(w.queue, func(k model.EndpointKey) bool {
			again := seen[k] || !w.set[k]
			seen[k] = true
			return again
		})
	}
}

func (w *waitingEndpoints) remove(k model.EndpointKey) { delete(w.set, k) }

// pop removes the oldest endpoint, and reports whether there was one.
func (w *waitingEndpoints) pop() (k model.EndpointKey, ok bool) {
	for len(w.queue) > 0 && !ok {
		k, w.queue = w.queue[0], w.queue[1:]
		ok = w.set[k]
	}
	delete(w.set, k)
	return k, ok
}

type countedRef struct {
	count    int32
	reading  int32
	inKernel uint8 // bits by outcome
}

// list adds an endpoint to those in the kernel.
func (c *countedEndpoints) list(k model.EndpointKey, v *countedRef) {
	c.listed++
	if n := len(c.unused); n > 0 {
		v.reading, c.unused = c.unused[n-1], c.unused[:n-1]
	} else {
		v.reading, c.readings = int32(len(c.readings)), append(c.readings, reading{})
	}
	c.readings[v.reading] = reading{key: k}
}

// unlist removes it.
func (c *countedEndpoints) unlist(v *countedRef) {
	c.listed--
	c.unused, c.readings[v.reading] = append(c.unused, v.reading), reading{}
	v.reading = 0
}

func newCountedEndpoints() *countedEndpoints {
	return &countedEndpoints{refs: map[model.EndpointKey]countedRef{}, waiting: waitingEndpoints{set: map[model.EndpointKey]bool{}}}
}

// countedEndpointsOf returns the endpoints whose connections a frontend wants counted, sorted.
func countedEndpointsOf(f *plan.Frontend) packedSlots {
	if !f.Outcomes {
		return nil
	}
	n := len(f.Pool.Endpoints)
	if f.Outside != nil {
		n += len(f.Outside.Endpoints)
	}
	list := make([]netip.AddrPort, 0, n)
	for m := range f.AllEndpoints() {
		if model.FamilyOf(m.Addr.Addr()) == f.Key.Family() && !plan.IsRefusing(m.Addr.Addr()) {
			list = append(list, m.Addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return pack(slices.Compact(list))
}

// reading is the counters of an endpoint in the kernel while they are read.
type reading struct {
	key      model.EndpointKey // zero: unused
	counters backend.OutcomeCounters
	seen     uint8 // bits by outcome, and sinceBegin
}
