package nftables

import (
	"bytes"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

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

// needOutcomes requests the sets and the rules that use them.
func (t *table) needOutcomes() {
	for _, s := range t.outcomes.all() {
		t.need(s)
	}
}

// dropOutcomes requests that the rules and sets are deleted, with their elements.
func (t *table) dropOutcomes() {
	for _, s := range t.outcomes.all() {
		if s.exists {
			s.exists, s.count, s.counted = false, 0, false
			t.oldSets = append(t.oldSets, s)
			t.rulesDirty = true
		}
	}
}

// deleteOld writes the messages that delete chains and sets that are no longer wanted.
func (t *table) deleteOld(b *nfnl.Batch) {
	if len(t.oldSets) == 0 {
		return
	}
	for _, name := range outcomeChainNames {
		if _, ok := t.chains[name]; ok {
			b.DeleteChain(t.Table, name)
			delete(t.chains, name)
		}
	}
	for _, s := range t.oldSets {
		b.Message(unix.NFT_MSG_DELSET, 0, t.Family, "delete set", s.name)
		b.PutString(unix.NFTA_SET_TABLE, t.Name)
		b.PutString(unix.NFTA_SET_NAME, s.name)
		b.End()
	}
	t.oldSets = nil
}
