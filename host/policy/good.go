package policy

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// good is a chain's answer, kept by address so that it can be laid over a later set of endpoints.
type good struct {
	rows    []row // sorted by address
	balance uint8
	kept    bool // some row says keep
	reset   bool // some row has a resetAt
}

type row struct {
	addr       netip.AddrPort
	conditions uint32 // Ready, Serving and Terminating when it was given
	weight     uint16
	keep       bool
	resetAt    int64 // Unix milliseconds, 0: never
}

// past gives the rows whose reset was due by now; nil when there are none.
func (g *good) past(now int64) map[netip.AddrPort]row {
	if !g.reset {
		return nil
	}
	out := map[netip.AddrPort]row{}
	for _, r := range g.rows {
		if r.resetAt != 0 && r.resetAt <= now {
			out[r.addr] = r
		}
	}
	return out
}

const lifeBits = abi.Ready | abi.Serving | abi.Terminating

// each walks the endpoints of in beside the rows: r is nil for an endpoint that the answer does not know.
func (g *good) each(in *Input, visit func(i int, r *row)) {
	j := 0
	for i := range in.Port.Endpoints {
		addr := in.Port.Endpoints[i].Addr
		for j < len(g.rows) && g.rows[j].addr != addr && g.rows[j].addr.Compare(addr) < 0 {
			j++
		}
		if j < len(g.rows) && g.rows[j].addr == addr {
			visit(i, &g.rows[j])
			j++
		} else {
			visit(i, nil)
		}
	}
}

// weights of an answer to in itself.
func (g *good) weights(in *Input) []uint16 {
	out := make([]uint16, len(in.Port.Endpoints))
	g.each(in, func(i int, r *row) {
		if r != nil {
			out[i] = r.weight
		}
	})
	return out
}

func (g *good) resets(in *Input) []int64 {
	var out []int64
	if !g.reset {
		return nil
	}
	g.each(in, func(i int, r *row) {
		if r != nil && r.resetAt != 0 {
			if out == nil {
				out = make([]int64, len(in.Port.Endpoints))
			}
			out[i] = r.resetAt
		}
	})
	return out
}

func (g *good) keeps(in *Input) []bool {
	var out []bool
	if !g.kept {
		return nil
	}
	g.each(in, func(i int, r *row) {
		if r != nil && r.keep {
			if out == nil {
				out = make([]bool, len(in.Port.Endpoints))
			}
			out[i] = true
		}
	})
	return out
}

// onto lays an earlier answer over the endpoints of in, where byDefault is what the default rules give. An endpoint
// that the answer does not know, or whose conditions have changed since, gets the mean weight of those that are known
// when the default rules choose it, and nothing otherwise. Nil when nothing would be left, and for a nil answer.
func (g *good) onto(in *Input, byDefault []uint16) []uint16 {
	if g == nil {
		return nil
	}
	out := make([]uint16, len(byDefault))
	known, sum := 0, 0
	var fresh []int
	g.each(in, func(i int, r *row) {
		e := &in.Port.Endpoints[i]
		switch {
		case !e.Eligible() || in.Pool == abi.PoolLocal && !e.Local:
		case r != nil && r.conditions == conditions(in, i)&lifeBits:
			out[i] = r.weight
			if r.weight > 0 {
				known, sum = known+1, sum+int(r.weight)
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
