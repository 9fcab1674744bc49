package planner

import (
	"cmp"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// gain is what an endpoint of the port gets of a part's connections: a part of all connections.
type gain struct {
	part, endpoint int
	share          float64
}

// decide decides about a pool of the port: a part has its share of the connections, and each of its endpoints that share of it
// that the part's own policy gives the endpoint. The share of a part without endpoints is refused; in a local pool, that of a
// part whose endpoints are on other nodes goes to the others.
func (s *Split) decide(d *policy.Decision, pool int) {
	shares := s.shares(pool)
	n := len(s.Decision.Port.Endpoints)
	var gains []gain
	asked := make([]combined, n)
	balance, agreed := uint8(abi.BalanceDefault), false
	for i := range s.Parts {
		if s.Parts[i].Pools[pool].Refused {
			gains = append(gains, gain{i, n, shares[i]})
		}
		of := s.Parts[i].pool(pool)
		if of == nil {
			continue
		}
		sum := s.Parts[i].sum(of)
		for j, k := range s.Parts[i].at {
			asked[k].add(of, j)
			if w := of.Weights[j]; w > 0 && shares[i] > 0 {
				gains = append(gains, gain{i, int(k), shares[i] * float64(w) / sum})
			}
		}
		if shares[i] > 0 && sum > 0 {
			if agreed && of.Balance != balance {
				balance = abi.BalanceDefault
			} else {
				balance, agreed = of.Balance, true
			}
		}
	}
	d.Balance = balance
	d.Weights, d.Refused = s.weigh(gains, n, pool)
	s.combine(d, asked)
}

// weigh returns the weights of n endpoints, and that of the connections that are refused, which are those of an endpoint after
// them. It sets the shares that the parts hold.
func (s *Split) weigh(gains []gain, n, pool int) (weights []uint16, refused uint16) {
	weights = make([]uint16, n+1)
	parts, some := make([]float64, n+1), false
	for _, g := range gains {
		parts[g.endpoint] += g.share
		some = some || g.endpoint < n
	}
	if !some { // the verdict of the pool refuses them
		for _, g := range gains {
			s.Parts[g.part].Pools[pool].Held += g.share
		}
		return weights[:n], 0
	}
	abi.Weights(weights, parts)
	total := 0.0
	for _, w := range weights {
		total += float64(w)
	}
	for _, g := range gains {
		s.Parts[g.part].Pools[pool].Held += float64(weights[g.endpoint]) / total * g.share / parts[g.endpoint]
	}
	return weights[:n], weights[n]
}

// shares sets the wanted share of each part in a pool, and returns them.
func (s *Split) shares(pool int) []float64 {
	total, out := 0.0, make([]float64, len(s.Parts))
	for i := range s.Parts {
		p, w := &s.Parts[i], s.Route.Backends[i].Weight
		share := &p.Pools[pool]
		of := p.pool(pool)
		empty := of == nil || p.sum(of) == 0
		share.LeftOut = empty && pool == abi.PoolLocal && p.decided != nil && p.decided.decision.Port.HasEligible
		share.Refused = empty && !share.LeftOut && w > 0
		if !share.LeftOut {
			out[i] = float64(w)
			total += float64(w)
		}
	}
	for i := range out {
		if total > 0 {
			out[i] /= total
		}
		s.Parts[i].Pools[pool].Wanted = out[i]
	}
	return out
}

// pool returns what has been decided about a pool of a part, nil for nothing.
func (p *SplitPart) pool(pool int) *policy.Decision {
	switch {
	case p.decided == nil:
		return nil
	case pool == abi.PoolLocal:
		return &p.decided.decision.Local
	}
	return &p.decided.decision.Cluster
}

// sum returns the sum of the weights of a part's endpoints that are not left out.
func (p *SplitPart) sum(of *policy.Decision) (sum float64) {
	for j := range p.at {
		sum += float64(of.Weights[j])
	}
	return sum
}

// combined is what all parts with an endpoint ask for its established connections: what only some of them ask for is not done,
// as it is not known whose connections they are.
type combined struct {
	parts, draining, resets, sheds int
	resetAt                        int64       // the latest
	shed                           policy.Shed // the smallest
}

func (c *combined) add(d *policy.Decision, i int) {
	c.parts++
	if d.KeepDraining != nil && d.KeepDraining[i] {
		c.draining++
	}
	if d.ResetAt != nil && d.ResetAt[i] != 0 {
		c.resets++
		c.resetAt = max(c.resetAt, d.ResetAt[i])
	}
	if d.Sheds != nil && d.Sheds[i].Permille != 0 {
		if c.sheds++; c.sheds == 1 || d.Sheds[i].Permille < c.shed.Permille {
			c.shed = d.Sheds[i]
		}
	}
}

// combine sets what becomes of established connections.
func (s *Split) combine(d *policy.Decision, asked []combined) {
	for i := range asked {
		c := &asked[i]
		if c.parts == 0 {
			continue
		}
		if c.draining == c.parts {
			d.KeepDraining = cmpOrMake(d.KeepDraining, len(asked))
			d.KeepDraining[i] = true
		}
		if c.resets == c.parts {
			d.ResetAt = cmpOrMake(d.ResetAt, len(asked))
			d.ResetAt[i] = c.resetAt
		}
		if c.sheds == c.parts {
			d.Sheds = cmpOrMake(d.Sheds, len(asked))
			d.Sheds[i] = c.shed
			s.limitSheds()
		}
	}
}

// limitSheds takes in the limits of the policies that shed connections: the least applies to all.
func (s *Split) limitSheds() {
	if s.by != nil {
		return
	}
	for j := range s.Parts {
		of := s.Parts[j].decided
		if of == nil || of.policy == nil || of.decision.Cluster.Sheds == nil && of.decision.Local.Sheds == nil {
			continue
		}
		if s.by = cmp.Or(s.by, of.policy); of.policy.MaxShedPercentPerSecond < s.by.MaxShedPercentPerSecond {
			s.by = of.policy
		}
	}
}

func cmpOrMake[T any](list []T, n int) []T {
	if list == nil {
		return make([]T, n)
	}
	return list
}
