package rules

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
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
		if model.FamilyOf(m.Addr.Addr()) == f.Key.Family() {
			list = append(list, m.Addr)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return pack(slices.Compact(list))
}

// changeCounted changes the references of a frontend. It commits when the transaction is full.
func (t *table) changeCounted(x *tx, proto model.Protocol, now, want packedSlots) error {
	if bytes.Equal(now, want) {
		return nil
	}
	for i, j := 0, 0; i < now.len() || j < want.len(); {
		var order int
		switch {
		case i == now.len():
			order = 1
		case j == want.len():
			order = -1
		default:
			order = now.at(i).Compare(want.at(j))
		}
		switch {
		case order < 0:
			t.counted.add(x, model.EndpointKey{Addr: now.at(i), Protocol: proto}, -1)
			i++
		case order > 0:
			t.counted.add(x, model.EndpointKey{Addr: want.at(j), Protocol: proto}, 1)
			j++
		default:
			i, j = i+1, j+1
		}
		if err := x.commitIfFull(); err != nil {
			return err
		}
	}
	return nil
}

// countedElementBytes is about the size of the messages that add an endpoint.
const countedElementBytes = int(outcomes) * 60

func (c *countedEndpoints) add(x *tx, k model.EndpointKey, by int32) {
	v := c.refs[k]
	had := v.count > 0
	v.count += by
	c.refs[k] = v
	switch has := v.count > 0; {
	case has && !had:
		c.wanted++
		if v.inKernel != allOutcomes {
			c.touched = append(c.touched, k)
			x.bytes += countedElementBytes
		}
	case had && !has:
		c.wanted--
		c.idle = append(c.idle, k)
	}
}

// put adds an endpoint to the sets or deletes it.
func (t *table) putCounted(x *tx, k model.EndpointKey, in bool) {
	c := t.counted
	v := c.refs[k]
	want := uint8(0)
	if in {
		want = allOutcomes
		t.needOutcomes()
	}
	key := countedKey(k)
	for o, s := range t.outcomes.counters {
		x.toggle(s, key, v.inKernel&(1<<o) != 0, in)
	}
	switch {
	case in && v.inKernel == 0:
		c.list(k, &v)
	case !in && v.inKernel != 0:
		c.unlist(&v)
	}
	if v.inKernel = want; v == (countedRef{}) {
		delete(c.refs, k)
	} else {
		c.refs[k] = v
	}
}

// flushCounted adds the endpoints that are wanted, as far as there is room.
func (t *table) flushCounted(x *tx) {
	c := t.counted
	for _, k := range c.touched {
		switch v := c.refs[k]; {
		case v.count <= 0 || v.inKernel == allOutcomes:
		case v.inKernel == 0 && c.listed >= MaxCountedEndpoints:
			c.waiting.push(k)
		default:
			t.putCounted(x, k, true)
		}
	}
	c.touched = c.touched[:0]
}

// sweepCounted deletes the endpoints that are not wanted, and adds those that waited for room. If none is wanted, it
// deletes the sets and their rules. It commits when the transaction is full. All frontends of a change have to be
// written: after reading the tables, that is all frontends.
func (t *table) sweepCounted(x *tx) error {
	c := t.counted
	if c.wanted == 0 {
		if len(c.refs) == 0 && !t.hasOutcomes() {
			return nil
		}
		if t.hasOutcomes() {
			if err := x.commit(); err != nil { // what is pending in these sets
				return err
			}
			t.dropOutcomes()
		}
		t.counted = newCountedEndpoints()
		return nil
	}
	for _, k := range c.idle {
		if v, ok := c.refs[k]; ok && v.count <= 0 {
			c.waiting.remove(k)
			if t.putCounted(x, k, false); x.full() {
				if err := x.commit(); err != nil {
					return err
				}
			}
		}
	}
	c.idle = c.idle[:0]
	for c.listed < MaxCountedEndpoints {
		k, ok := c.waiting.pop()
		if !ok {
			break
		}
		t.putCounted(x, k, true)
		if err := x.commitIfFull(); err != nil {
			return err
		}
	}
	return nil
}

// loadCounted stores the endpoints of a set. Until a frontend refers to them they are idle.
func (t *table) loadCounted(o outcome) func([]nfnl.Element) error {
	return func(list []nfnl.Element) error {
		for _, e := range list {
			k, ok := countedKeyOf(t.addr.bytes, e.Key)
			if !ok {
				return errForeignElement(t.outcomes.counters[o])
			}
			c := t.counted
			v := c.refs[k]
			if v.inKernel == 0 {
				c.list(k, &v)
				c.idle = append(c.idle, k)
			}
			v.inKernel |= 1 << o
			c.refs[k] = v
		}
		return nil
	}
}

// countedKey encodes the key of an endpoint.
func countedKey(k model.EndpointKey) []byte {
	return frontendKey(nil, plan.Key{Addr: k.Addr.Addr(), Port: k.Addr.Port(), Protocol: k.Protocol})
}

// countedKeyOf decodes the key of an endpoint whose address has n bytes.
func countedKeyOf(n int, key []byte) (k model.EndpointKey, ok bool) {
	if len(key) < n+6 {
		return k, false
	}
	a, ok := netip.AddrFromSlice(key[:n])
	return model.EndpointKey{Addr: netip.AddrPortFrom(a, binary.BigEndian.Uint16(key[n+4:])), Protocol: protocol(key[n])}, ok
}
