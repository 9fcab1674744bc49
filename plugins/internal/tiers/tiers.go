// Package tiers divides the connections of each group of a request between tiers of its endpoints, such as zones.
package tiers

import (
	"math"

	"github.com/sluice-proxy/sluice/sdk"
)

// Tiers are those of all groups of a request: tier t of group g is at g × Count + t.
type Tiers struct {
	Count  int       // of tiers
	Load   []float64 // of the endpoints of each tier, by capacity and Base
	Target []uint32  // what a tier should get of the connections of its group, in millionths

	at    []int // where each endpoint is, or -1
	share []int // of an endpoint with Base One
}

// Reset prepares for a request.
func (t *Tiers) Reset(req *sdk.Request, count int) {
	n := req.NumGroups() * count
	t.Count = count
	t.Load, t.Target = append(t.Load[:0], make([]float64, n)...), append(t.Target[:0], make([]uint32, n)...)
	t.at = append(t.at[:0], make([]int, req.NumEndpoints())...)
}

// Add adds endpoint i, with its capacity × Base, to a tier: at is where that is.
func (t *Tiers) Add(i, at int, load uint64) {
	t.at[i] = at
	t.Load[at] += float64(load)
}

// Skip leaves endpoint i as it is.
func (t *Tiers) Skip(i int) { t.at[i] = -1 }

// Base returns the share of an endpoint relative to others of its tier. Topology hints, because of which the default rules do not
// choose an endpoint, are for one tier only, so they do not count.
func Base(e sdk.Endpoint) int {
	if s := e.Share(); s > 0 || e.Conditions()&sdk.Chosen != 0 {
		return s
	}
	return sdk.One
}

// SetTarget sets the target of a tier to a part of the connections of its group.
func (t *Tiers) SetTarget(at int, part float64) {
	t.Target[at] = uint32(math.Round(min(max(part, 0), 1) * sdk.One))
}

// Group returns the loads and targets of a group.
func (t *Tiers) Group(g int) (load []float64, target []uint32) {
	return t.Load[g*t.Count:][:t.Count], t.Target[g*t.Count:][:t.Count]
}

// SetShares sets the share of each endpoint so that tiers get their targets; the tier with the most for each unit of load keeps
// Base. A group without targets keeps its shares.
func (t *Tiers) SetShares(resp *sdk.Response, req *sdk.Request, reasons []sdk.ReasonID) {
	for g := range req.NumGroups() {
		load, target := t.Group(g)
		top := 0.0
		for i := range load {
			if load[i] > 0 {
				top = max(top, float64(target[i])/load[i])
			}
		}
		for i := range load { // load becomes the factor of shares; it is of no further use
			if load[i] > 0 && top > 0 {
				load[i] = float64(target[i]) / load[i] / top
			} else {
				load[i] = -1
			}
		}
	}
	t.share = t.share[:0]
	for _, f := range t.Load {
		t.share = append(t.share, scaled(sdk.One, f))
	}
	for i, at := range t.at {
		if at < 0 {
			continue
		}
		if share := t.share[at]; share >= 0 {
			if e := req.Endpoint(i); e.Share() != sdk.One {
				share = scaled(Base(e), t.Load[at])
			}
			resp.SetShare(i, share)
		}
		resp.SetReasonID(i, reasons[at])
	}
}

// scaled returns a share × a factor, at least 1 if both are above 0, and -1 if the factor is below.
func scaled(share int, factor float64) int {
	if factor <= 0 || share == 0 {
		return int(factor)
	}
	return max(1, int(math.Round(float64(share)*factor)))
}
