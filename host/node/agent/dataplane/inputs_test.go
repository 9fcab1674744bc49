package dataplane

import (
	"maps"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestMissingInputsFollowTheCapabilitiesOfTheMode(t *testing.T) {
	for _, counts := range []bool{true, false} {
		m := Mode{Name: "other", Caps: func() plan.Caps { return plan.Caps{Outcomes: counts} }}
		want := map[string]string{}
		if !counts {
			want["outcomes"] = "mode other does not count the outcomes of connections"
		}
		if got := m.MissingInputs(); !maps.Equal(got, want) {
			t.Errorf("counts %t: missing %v, want %v", counts, got, want)
		}
	}
}
