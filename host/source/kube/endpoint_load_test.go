package kube

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func loadFields(s *model.Snapshot) model.LabelsRead { return s.LoadRead }

// reported is load that an endpoint reports.
func reported(service string, values map[string]v1alpha1.LoadValue) *v1alpha1.EndpointLoad {
	return &v1alpha1.EndpointLoad{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: service}, Endpoints: []v1alpha1.ReportedLoad{{Address: "10.244.0.1", Values: values}}}
}

// load returns what is known of the endpoints of a Service.
func (r *fixture) load(service string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.snap.Loads[model.Name{Namespace: "shop", Name: service}]; l != nil {
		return fmt.Sprint(l.Values)
	}
	return "-"
}

func TestLoadIsWatchedWhilePoliciesSeeIt(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(needsOfBound(Needs{Load: []string{"eps"}}))
	type values = map[string]v1alpha1.LoadValue
	r.server.put(reported("web", values{"eps": "1", "cpu_utilization": "0.5"}), reported("other", values{"cpu_utilization": "0.5"}), svc("web"))
	r.run()
	r.waitSynced()
	if n := r.server.requestCount("endpointloads"); n > 0 {
		t.Errorf("%d requests although no policy sees load", n)
	}
	r.server.put(svc("web", bound))
	testenv.Eventually(t, "the load", func() bool { return r.read(loadFields, "eps") })
	if got := r.load("web") + r.load("other"); got != "map[10.244.0.1:map[eps:1]]-" {
		t.Errorf("load %q", got)
	}
	r.takeChanges()
	r.server.put(reported("web", values{"eps": "1", "cpu_utilization": "0.9"}), reported("third", values{"eps": "x"}), reported("fourth", values{"eps": "4"}))
	testenv.Eventually(t, "another load", func() bool { return r.load("fourth") != "-" })
	r.wantEmitted("a field that no policy sees, and one that is no number", "+14 shop/fourth")
	r.source.SetNeeds(needsOfBound(Needs{Load: []string{"cpu_utilization", "eps"}}))
	testenv.Eventually(t, "another field", func() bool { return r.load("web") == "map[10.244.0.1:map[cpu_utilization:0.9 eps:1]]" })
	r.server.remove("endpointloads", "shop/web")
	testenv.Eventually(t, "no load", func() bool { return r.load("web") == "-" })
	r.server.put(svc("web"))
	testenv.Eventually(t, "the end of the need", func() bool { return r.load("other") == "-" && !r.read(loadFields, "eps") })
}

// TestWithoutTheKindThereIsNoLoad: plugins do not wait for it.
func TestWithoutTheKindThereIsNoLoad(t *testing.T) {
	for _, status := range []int{403, 404} {
		r := newFixture(t, nil)
		r.server.status["endpointloads"] = status
		r.source.SetNeeds(needsOfBound(Needs{Load: []string{"eps"}}))
		r.server.put(svc("web", bound))
		r.run()
		r.waitSynced()
		testenv.Eventually(t, "plugins do not wait", func() bool { return r.read(loadFields, "eps") })
		testenv.Eventually(t, "the log says so", func() bool { return r.logCount("policies see no load of endpoints") == 1 })
	}
}
