package kube

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// TestSnapshotMatchesFreshListAfterRandomFaults changes objects at random, among faults of server and network, and
// compares the resulting state with a new list.
func TestSnapshotMatchesFreshListAfterRandomFaults(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			r := newFixture(t, nil)
			if seed%2 == 0 {
				r.source.SetNeeds(onAnyNode(func(s *model.Service) Needs {
					needs := Needs{Nodes: true}
					if s.Selector != "" {
						needs.Pods = source.PodKeys{Labels: []string{"track"}, Full: seed == 4}
					}
					return needs
				}))
			}
			r.server.noStreams = seed%3 == 2
			for range 30 {
				randomChange(r.server, random)
			}
			r.run()
			r.waitSynced()
			for round := range 12 {
				for range 1 + random.IntN(20) {
					randomChange(r.server, random)
				}
				randomFault(r, random)
				for range random.IntN(10) {
					randomChange(r.server, random)
				}
				r.server.update(func() { r.server.unreachable, r.server.fail = false, nil })
				r.waitInSync()
				if t.Failed() {
					t.Fatal("in round ", round)
				}
			}
			// The stores share the emitted values.
			r.mu.Lock()
			defer r.mu.Unlock()
			for name, v := range r.snap.Services {
				if r.source.services.get(name) != v {
					t.Errorf("Service %s: two copies", name)
				}
			}
			for _, list := range r.snap.Slices {
				for _, v := range list {
					if r.source.slices.get(v.Name) != v {
						t.Errorf("EndpointSlice %s: two copies", v.Name)
					}
				}
			}
		})
	}
}

// randomChange changes one object. All objects are valid: the effect of an invalid update depends on the previous one.
func randomChange(f *fakeServer, random *rand.Rand) {
	name := fmt.Sprint("s", random.IntN(12))
	address := func() string { return fmt.Sprintf("10.0.%d.%d", random.IntN(4), 1+random.IntN(200)) }
	label := func(labels map[string]string) {
		switch random.IntN(6) {
		case 0:
			labels[source.LabelProxyName] = "x"
		case 1:
			labels[source.LabelHeadless] = ""
		}
	}
	switch random.IntN(15) {
	case 12, 13:
		f.put(pod(fmt.Sprint("p", random.IntN(20)), fmt.Sprint("app=", random.IntN(7)), fmt.Sprint("track=", random.IntN(3)), fmt.Sprint("other=", random.IntN(3))))
	case 14:
		f.remove("pods", fmt.Sprint("shop/p", random.IntN(20)))
	case 0, 1, 2:
		f.put(svc(name, func(o *corev1.Service) {
			label(o.Labels)
			if app := random.IntN(9); app < 7 {
				o.Spec.Selector = map[string]string{"app": fmt.Sprint(app)}
			}
			o.Spec.ClusterIP = []string{address(), address(), "None", ""}[random.IntN(4)]
			if random.IntN(8) == 0 {
				o.Spec.Type = corev1.ServiceTypeExternalName
			}
		}))
	case 3:
		f.remove("services", "shop/"+name)
	case 4, 5, 6, 7:
		var endpoints []string
		for range random.IntN(5) {
			endpoints = append(endpoints, address())
		}
		s := slice(name, endpoints...)
		label(s.Labels)
		if random.IntN(5) == 0 { // it moves to another Service
			s.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("s", random.IntN(12))
		}
		f.put(s)
	case 8:
		f.remove("endpointslices", "shop/"+name+"-x")
	case 9:
		f.put(node(ownNodeName, fmt.Sprint("z", random.IntN(3))))
	case 10:
		other := fmt.Sprint("n", random.IntN(4))
		if random.IntN(3) == 0 {
			f.remove("nodes", "/"+other)
		} else {
			f.put(node(other, fmt.Sprint("z", random.IntN(3))))
		}
	case 11:
		if random.IntN(3) == 0 {
			f.remove("servicecidrs", "/kubernetes")
		} else {
			f.put(cidr("kubernetes", fmt.Sprintf("10.%d.0.0/16", 96+random.IntN(3))))
		}
	}
}

// randomFault injects a fault. Lasting ones end with the round.
func randomFault(r *fixture, random *rand.Rand) {
	f := r.server
	refuseAll := func(status int) { f.update(func() { f.fail = func(*http.Request) int { return status } }) }
	switch random.IntN(9) {
	case 0:
		f.endWatches()
	case 1:
		r.letWatchesAge()
		f.endWatches()
	case 2:
		f.expireHistory()
		f.endWatches()
	case 3:
		f.update(func() {
			f.truncatedLists["services"], f.truncatedLists["endpointslices"] = random.IntN(3), random.IntN(3)
		})
		f.expireHistory()
		f.endWatches()
	case 4:
		f.update(func() { f.unreachable = true })
		f.endWatches()
	case 5:
		refuseAll(http.StatusServiceUnavailable)
		f.endWatches()
	case 6:
		refuseAll(http.StatusInternalServerError)
		f.endWatches()
		f.expireHistory()
	case 7:
		f.breakEvent()
	}
}
