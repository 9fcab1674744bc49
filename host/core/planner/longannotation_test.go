package planner

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
)

// TestLongAnnotationThatAPluginDeclaresIsReported once, as long as it is too long. Others are not.
func TestLongAnnotationThatAPluginDeclaresIsReported(t *testing.T) {
	p := New(testSettings(), func(string) (policy.Plugin, error) {
		return policytest.Plugin{Answer: weightOfLabel, Values: []string{"service-annotation:example.com/mode"}}, nil
	})
	service := func(annotations map[string]string) []model.Change {
		changes := podService("shop", "web", "p", 1)
		changes[0].Service.Annotations = model.PackAnnotations(annotations, nil)
		return changes
	}
	long := strings.Repeat("x", model.MaxAnnotation+1)
	p.Apply(append(service(nil), model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	for _, test := range []struct {
		what          string
		annotations   map[string]string
		newly, listed int
	}{
		{"as long as allowed", map[string]string{"example.com/mode": long[1:]}, 0, 0},
		{"another one is too long", map[string]string{"example.com/mode": "fast", "note": long}, 0, 0},
		{"too long", map[string]string{"example.com/mode": long}, 1, 1},
		{"still", map[string]string{"example.com/mode": long + "y", "note": "z"}, 0, 1},
		{"corrected", map[string]string{"example.com/mode": "fast"}, 0, 0},
	} {
		p.Apply(service(test.annotations))
		r := p.PlanNow(time.Unix(1000, 0))
		if len(r.NewlyLimited) != test.newly || len(p.Omitted()) != test.listed {
			t.Errorf("%s: new %v, all %v", test.what, r.NewlyLimited, p.Omitted())
		}
		for _, d := range r.NewlyLimited {
			if want := "wanted annotation example.com/mode, got no value for plugins: it has more than 256 bytes"; !strings.HasSuffix(d.String(), want) {
				t.Errorf("%s: %s", test.what, d)
			}
		}
	}
}
