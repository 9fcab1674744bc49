package policy

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// lastGood is a chain's answer, kept by address so that it can be laid over a later set of endpoints.
type lastGood struct {
	addrs       model.AddrList // sorted
	rows        []row          // parallel to it
	resetsAt    []int64        // parallel to it, Unix milliseconds, 0: never; nil: none is
	balance     uint8
	hasDraining bool // some row says keep
}

type row struct {
	weight       uint16
	conditions   uint8 // Ready, Serving and Terminating when it was given
	keepDraining bool
}

const lifecycleBits = abi.Ready | abi.Serving | abi.Terminating

const _ uint8 = lifecycleBits

func (g *lastGood) resetAt(j int) int64 {
	if g.resetsAt == nil {
		return 0
	}
	return g.resetsAt[j]
}

// setReset notes when the connections of a row are reset, 0: never.
func (g *lastGood) setReset(j int, at int64) {
	if g.resetsAt == nil {
		if at == 0 {
			return
		}
		g.resetsAt = make([]int64, len(g.rows))
	}
	g.resetsAt[j] = at
}

// expiredResets gives the rows whose reset was due by now, by number; nil when there are none.
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

// forEach walks the endpoints of in beside the rows: j is the row's number, -1 for an endpoint that the answer does not know.
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

// weights of an answer to in itself.
func (g *lastGood) weights(in *Input) []uint16 {
	out := make([]uint16, len(in.Port.Endpoints))
	g.forEach(in, func(i, j int) {
		if j >= 0 {
			out[i] = g.rows[j].weight
		}
	})
	return out
}

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

func (g *lastGood) draining(in *Input) []bool {
	var out []bool
	if !g.hasDraining {
		return nil
	}
	g.forEach(in, func(i, j int) {
		if j >= 0 && g.rows[j].keepDraining {
			if out == nil {
				out = make([]bool, len(in.Port.Endpoints))
			}
			out[i] = true
		}
	})
	return out
}

// applyTo lays an earlier answer over the endpoints of in, where byDefault is what the default rules give. An endpoint
// that the answer does not know, or whose conditions have changed since, gets the mean weight of those that are known
// when the default rules choose it, and nothing otherwise. Nil when nothing would be left, and for a nil answer.
func (g *lastGood) applyTo(in *Input, byDefault []uint16) []uint16 {
	if g == nil {
		return nil
	}
	out := make([]uint16, len(byDefault))
	known, sum := 0, 0
	var fresh []int
	g.forEach(in, func(i, j int) {
		e := &in.Port.Endpoints[i]
		switch {
		case !e.Eligible() || in.Pool == abi.PoolLocal && !e.Local:
		case j >= 0 && uint32(g.rows[j].conditions) == conditions(in, i)&lifecycleBits:
			out[i] = g.rows[j].weight
			if out[i] > 0 {
				known, sum = known+1, sum+int(out[i])
			}
		case byDefault[i] > 0:
			fresh = append(fresh, i)
		}
	})
	if known == 0 {
		return nil
	}
	for _, i := range fresh {
		out[i] = uint16(max(1, (sum+known/2)/known))
	}
	return out
}
