package plugins

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// TestMisspeltServiceSettingsAreFound: a field that the settings of a plugin do not have is, fields of all types that they have
// are not.
func TestMisspeltServiceSettingsAreFound(t *testing.T) {
	r := newSettingsRig(t)
	if _, err := r.load("", `{"hold":"10s"}`); err != nil {
		t.Fatal(err)
	}
	for i := range r.cfg.Policies {
		r.cfg.Policies[i].Plugins[0].ServiceSettings = []string{"demand", "hold", "minEndpointsPerZone"}
	}
	if got := r.set.UnknownServiceSettings(t.Context(), r.cfg); len(got) > 0 {
		t.Errorf("got %q", got)
	}
	r.cfg.Policies[0].Shadow = []config.Step{{Name: "p", ServiceSettings: []string{"demand", "demnad"}}}
	if _, err := r.set.Load(t.Context(), r.cfg, nil); err != nil {
		t.Fatal(err)
	}
	r.cfg.Policies[1].Plugins[0].ServiceSettings = []string{"hold", "hodl"}
	got := r.set.UnknownServiceSettings(t.Context(), r.cfg)
	if len(got) != 2 || !strings.HasPrefix(got[0], `policies[0].shadow[0].serviceSettings: "demnad": plugin p has no such setting: `) ||
		!strings.HasPrefix(got[1], `policies[1].plugins[0].serviceSettings: "hodl": plugin p has no such setting: `) {
		t.Errorf("got %q", got)
	}
}
