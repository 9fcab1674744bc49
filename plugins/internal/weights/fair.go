package weights

import (
	"math"

	"github.com/sluice-proxy/sluice/sdk"
)

// Whole is what Fair divides.
const Whole = 1 << 24

// Fair stores in dst what each endpoint gets of the connections by capacity, share and group: of Whole, and at least 1 if it gets
// any.
func Fair(dst []uint64, req *sdk.Request) []uint64 {
	var room [sdk.MaxGroups]float64
	load := room[:req.NumGroups()]
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		load[e.Group()] += float64(e.Load())
	}
	whole, all := 0.0, 0.0
	for g, l := range load {
		if all += l; l > 0 {
			whole += float64(req.GroupPart(g))
		}
	}
	dst = dst[:0]
	for g, l := range load { // becomes what a unit of load gets
		switch {
		case l == 0:
		case whole > 0:
			load[g] = float64(req.GroupPart(g)) / whole / l * Whole
		default:
			load[g] = Whole / all
		}
	}
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		n := uint64(0)
		if l := e.Load(); l > 0 {
			if per := load[e.Group()]; per > 0 {
				n = max(1, uint64(math.Round(float64(l)*per)))
			}
		}
		dst = append(dst, n)
	}
	return dst
}
