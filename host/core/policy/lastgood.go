package policy

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// lastGood is a chain's answer, stored by endpoint address so that it can be applied to a different set of endpoints later.
type lastGood struct {
	addrs       model.AddrList // sorted
	rows        []row          // parallel to addrs
	resetsAt    []int64        // parallel to addrs, Unix milliseconds, 0: never; nil: no resets
	sheds       []Shed         // parallel to addrs; nil: none
	balance     uint8
	hasDraining bool // a row has keepDraining
}

// row is the answer for an endpoint.
type row struct {
	weight       uint16
	conditions   uint8 // lifecycleBits of the endpoint when the plugin answered
	keepDraining bool
}

// lifecycleBits are the conditions on which an answer depends.
const lifecycleBits = abi.Ready | abi.Serving | abi.Terminating

const _ uint8 = lifecycleBits // they fit into row.conditions

func (g *lastGood) resetAt(j int) int64 {
	if g.resetsAt == nil {
		return 0
	}
	return g.resetsAt[j]
}

// setReset sets when the connections of a row are reset, 0: never.
func (g *lastGood) setReset(j int, at int64) {
	if g.resetsAt == nil {
		if at == 0 {
			return
		}
		g.resetsAt = make([]int64, len(g.rows))
	}
	g.resetsAt[j] = at
}

// expiredResets returns the numbers of the rows whose reset time has passed, by address; nil when there are none.
func (g *lastGood) expiredResets(now int64) map[netip.AddrPort]int {
	var out map[netip.AddrPort]int
	for j, at := range g.resetsAt {
		if at != 0 && at <= now {
			if out == nil {
				out = map[netip.AddrPort]int{}
			}
			out[g.addrs.At(j)] = j
		}
	}
	return out
}

// forEach calls visit for each endpoint i of in with the number j of its row, -1 when there is none.
func (g *lastGood) forEach(in *Input, visit func(i, j int)) {
	j, n := 0, g.addrs.Len()
	for i := range in.Port.Endpoints {
		addr := in.Port.Endpoints[i].Addr
		for j < n && g.addrs.At(j) != addr && g.addrs.At(j).Compare(addr) < 0 {
			j++
		}
		if j < n && g.addrs.At(j) == addr {
			visit(i, j)
			j++
		} else {
			visit(i, -1)
		}
	}
}

// weights returns the weights by endpoint of in, which the answer is for.
func (g *lastGood) weights(in *Input) []uint16 {
	out := make([]uint16, len(in.Port.Endpoints))
	g.forEach(in, func(i, j int) {
		if j >= 0 {
			out[i] = g.rows[j].weight
		}
	})
	return out
}

// resets returns the reset times by endpoint of in, nil when there are none.
func (g *lastGood) resets(in *Input) []int64 {
	var out []int64
	if g.resetsAt == nil {
		return nil
	}
	g.forEach(in, func(i, j int) {
		if j >= 0 && g.resetsAt[j] != 0 {
			if out == nil {
				out = make([]int64, len(in.Port.Endpoints))
			}
			out[i] = g.resetsAt[j]
		}
	})
	return out
}

// draining returns which endpoints of in stay as draining endpoints, nil when none does. One whose conditions have changed since
// the answer does not.
func (g *lastGood) draining(in *Input) []bool {
	var out []bool
	if !g.hasDraining {
		return nil
	}
	g.forEach(in, func(i, j int) {
		if j >= 0 && g.rows[j].keepDraining && uint32(g.rows[j].conditions) == conditions(in, i)&lifecycleBits {
			if out == nil {
				out = make([]bool, len(in.Port.Endpoints))
			}
			out[i] = true
		}
	})
	return out
}

// applyTo applies an earlier answer to the endpoints of in. An endpoint that has no row, or whose conditions have changed since,
// gets the mean of the applied weights if it has a default weight, and 0 otherwise. It returns nil when no weight is left, and
// for a nil answer.
func (g *lastGood) applyTo(in *Input, defaults []uint16) []uint16 {
	if g == nil {
		return nil
	}
	out := make([]uint16, len(defaults))
	known, sum := 0, 0
	var unknown []int
	g.forEach(in, func(i, j int) {
		e := &in.Port.Endpoints[i]
		switch {
		case !e.EligibleIn(in.Pool == abi.PoolLocal) || in.Pool == abi.PoolLocal && !e.Local:
		case j >= 0 && uint32(g.rows[j].conditions) == conditions(in, i)&lifecycleBits:
			out[i] = g.rows[j].weight
			if out[i] > 0 {
				known, sum = known+1, sum+int(out[i])
			}
		case defaults[i] > 0:
			unknown = append(unknown, i)
		}
	})
	if known == 0 {
		return nil
	}
	for _, i := range unknown {
		out[i] = uint16(max(1, (sum+known/2)/known))
	}
	return out
}
