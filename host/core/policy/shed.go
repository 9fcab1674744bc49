package policy

import "github.com/sluice-proxy/sluice/host/core/model"

// Shed is that part of an endpoint's established connections is reset over a minute.
type Shed struct {
	// At is when it began, Unix milliseconds: when the plugin first gave this answer. The same answer again is the same shed. 0:
	// in another boot.
	At       int64
	Permille uint16 // 0: none
}

// combineSheds sets the sheds of the answers of the chain, for each endpoint the largest one. before are those of the last
// answer.
func (ch *chain) combineSheds(g *lastGood, before []Shed, addrs model.AddrList) {
	for k := range ch.steps {
		s := &ch.steps[k]
		for i, permille := range s.results.shedPermille {
			if permille > g.shed(i).Permille {
				g.setShed(i, Shed{s.answeredAt, permille})
			}
		}
	}
	if g.sheds == nil || before == nil {
		return
	}
	j, n := 0, addrs.Len()
	for i := range g.sheds {
		addr := g.addrs.At(i)
		for j < n && addrs.At(j) != addr && addrs.At(j).Compare(addr) < 0 {
			j++
		}
		if j < n && addrs.At(j) == addr && before[j].Permille == g.sheds[i].Permille {
			g.sheds[i].At = before[j].At
		}
	}
}

func (g *lastGood) shed(j int) Shed {
	if g.sheds == nil {
		return Shed{}
	}
	return g.sheds[j]
}

func (g *lastGood) setShed(j int, s Shed) {
	if g.sheds == nil {
		if s.Permille == 0 {
			return
		}
		g.sheds = make([]Shed, len(g.rows))
	}
	g.sheds[j] = s
}

// shedsOf returns the sheds by endpoint of in, nil when there are none.
func (g *lastGood) shedsOf(in *Input) (out []Shed) {
	if g.sheds == nil {
		return nil
	}
	g.forEach(in, func(i, j int) {
		if j >= 0 && g.sheds[j].Permille != 0 {
			if out == nil {
				out = make([]Shed, len(in.Port.Endpoints))
			}
			out[i] = g.sheds[j]
		}
	})
	return out
}
