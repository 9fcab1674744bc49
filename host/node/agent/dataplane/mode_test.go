package dataplane

import (
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
)

func TestTableHasTheModesOfTheConfiguration(t *testing.T) {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
		if m.Caps == nil || m.Open == nil || m.Probe == nil || m.Read == nil || m.Cleanup == nil {
			t.Errorf("mode %s: a required function is missing: %+v", m.Name, m)
		}
	}
	if !slices.Equal(names, config.Modes()) {
		t.Errorf("modes %v, the configuration accepts %v", names, config.Modes())
	}
}
