package planner

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/slots"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// flippingPlugin gives weight to every other endpoint, and in its next revision to those in between.
type flippingPlugin struct {
	zonePlugin
	revision *int
	weights  [2]uint16 // of the endpoints with weight, in turn
}

func (p flippingPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		resp.Results[i].Value = abi.One * uint32((i+*p.revision)%2) * uint32(p.weights[i/2%2])
	}
	return nil
}
func (flippingPlugin) Counters() []string { return nil }
func (flippingPlugin) Role() abi.Role     { return abi.RoleLocality }
func (p flippingPlugin) Revision() string { return fmt.Sprint(*p.revision) }

// TestLargePoolIsPlannedInParts: each step changes a bounded number of endpoints, and the result is that of one step; with
// weights, too.
func TestLargePoolIsPlannedInParts(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "giant"}
	svc := func(age int64, labels map[string]string) []model.Change {
		return []model.Change{{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, Labels: labels, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}, HealthCheckNodePort: uint16(age),
		}}}
	}
	endpoints := func(from, n int) []model.Change {
		var out []model.Change
		for i := range 10 {
			s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: fmt.Sprint("giant-", i)}, Service: name, Family: model.IPv4,
				Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}}
			for j := range n / 10 {
				k := from + i*n/10 + j
				s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(k >> 8), byte(k)}), Ready: true, Serving: true})
			}
			out = append(out, model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
		}
		return out
	}
	zoned := map[string]string{"zoned": ""}
	gone := []model.Change{{Kind: model.ServiceKind, Name: name}}
	for what, history := range map[string][][]model.Change{
		"without weights": {append(endpoints(0, 5000), svc(0, nil)...), endpoints(2500, 5000), gone},
		"with weights":    {append(endpoints(0, 5000), svc(0, zoned)...), svc(1, zoned), endpoints(2500, 5000), svc(2, nil), svc(3, zoned), gone},
	} {
		revision := 0
		plugins := func(string) (policy.Plugin, error) {
			return flippingPlugin{revision: &revision, weights: [2]uint16{3, 5}}, nil
		}
		now := time.Unix(1000, 0)
		p := New(testSettings(), plugins)
		planInSteps(p)
		p.Apply([]model.Change{{Kind: model.Synced}})
		p.PlanNow(now)
		all := []model.Change{{Kind: model.Synced}}
		for i, changes := range history {
			revision++
			p.Apply(changes)
			all = append(all, changes...)
			for steps := 1; ; steps++ {
				step := p.PlanNow(now)
				changed := elementsOf(step.Delta)
				if changed > 2*maxStepCost/elementCost {
					t.Fatalf("%s: change %d, step %d changes %d slots", what, i, steps, changed)
				}
				if step.Remaining == 0 {
					t.Logf("%s: change %d: %d steps", what, i, steps)
					break
				} else if steps == 1000 {
					t.Fatal("no end")
				}
			}
			scratch := New(testSettings(), plugins)
			scratch.Apply(all)
			scratch.PlanNow(now)
			if !p.Current().Equal(scratch.Current()) {
				t.Fatalf("%s: change %d: in parts\n%s\nat once\n%s", what, i, plan.Format(p.Current()), plan.Format(scratch.Current()))
			}
		}
	}
}

// TestStepIsBoundedByTheSlotsOfWeights: weights without a common divisor have a thousand slots, however few endpoints there are.
func TestStepIsBoundedByTheSlotsOfWeights(t *testing.T) {
	const services = 200
	revision := 0
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return flippingPlugin{revision: &revision, weights: [2]uint16{999, 1}}, nil
	})
	planInSteps(p)
	changes := manyServices(services, 4)
	for i := range changes {
		if s := changes[i].Service; s != nil {
			s.Labels = map[string]string{"zoned": ""}
		}
	}
	p.Apply(changes)
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	revision++
	p.Apply([]model.Change{ownNode("z1")})
	total := 0
	for steps := 1; ; steps++ {
		step := p.PlanNow(now)
		changed := elementsOf(step.Delta)
		if changed > 4*maxStepCost/elementCost {
			t.Fatalf("step %d changes %d slots of %d Services", steps, changed, len(step.Delta.Changes))
		}
		if total += changed; step.Remaining == 0 {
			break
		}
	}
	if total < services*900 {
		t.Errorf("only %d slots changed", total)
	}
}

// TestStepIsBoundedByTheEndpointsOfAffinity: session affinity that begins or ends takes elements for each endpoint. A Service
// begins and ends it in one piece, so a step does so for few.
func TestStepIsBoundedByTheEndpointsOfAffinity(t *testing.T) {
	const services, endpoints = 100, 200
	p := New(testSettings(), nativePlugins)
	planInSteps(p)
	changes := manyServices(services, endpoints)
	p.Apply(changes)
	now := time.Unix(1000, 0)
	p.PlanNow(now)
	for _, affinity := range []time.Duration{time.Hour, 0} {
		for _, c := range changes {
			if c.Service != nil {
				s := *c.Service
				s.Affinity = affinity
				p.Apply([]model.Change{{Kind: model.ServiceKind, Name: s.Name, Service: &s}})
			}
		}
		all := 0
		for remaining := 1; remaining > 0; {
			step := p.PlanNow(now)
			n := len(step.Delta.Changes)
			if limit := 1 + 2*maxStepCost/elementCost/endpoints; n > limit {
				t.Errorf("a step changes %d Services, more than %d", n, limit)
			}
			all, remaining = all+n, step.Remaining
		}
		if all != services {
			t.Errorf("%d Services have changed", all)
		}
	}
}

// elementCost is the cost of an element of the kernel.
const elementCost = 50

// elementsOf returns how many elements of the kernel a delta takes.
func elementsOf(d *plan.Delta) (n int) {
	for _, c := range d.Changes {
		_, cost := slots.Step(c.Old, c.New, math.MaxInt)
		n += cost / elementCost
	}
	return n
}

// planInSteps makes a planner plan in batches, and in steps of a data plane with slots.
func planInSteps(p *Planner) {
	p.PlanInBatches()
	p.SetCaps(plan.Caps{Step: slots.Step})
}
