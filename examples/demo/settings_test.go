package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/config"
)

func TestAdaptedConfigurationIsValid(t *testing.T) {
	text, err := os.ReadFile("../boutique/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, err := adapt(text, "/tmp/demo/plugins", "/tmp/demo/cache", 7)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(out, "/")
	if err != nil {
		t.Fatal(err)
	}
	before, err := config.Parse(text, "/")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Policies) != len(before.Policies) || len(c.Bindings) != len(before.Bindings) {
		t.Errorf("policies or bindings were lost: %d and %d", len(c.Policies), len(c.Bindings))
	}
	for _, p := range c.Plugins {
		if filepath.Dir(p.File) != "/tmp/demo/plugins" {
			t.Errorf("plugin %s is at %s", p.Name, p.File)
		}
	}
	var drain, spill string
	for _, p := range c.Policies {
		for _, s := range p.Plugins {
			switch s.Name {
			case "lifecycle":
				drain = string(s.Settings)
			case "locality":
				spill = string(s.Settings)
			}
		}
	}
	if strings.Count(drain, `"duration":"7s"`) != 3 || !strings.Contains(drain, `"percent":50`) {
		t.Errorf("lifecycle: %s", drain)
	}
	if !strings.Contains(spill, `"minEndpointsPerZone":1`) || !strings.Contains(spill, `"demand":"cpu"`) {
		t.Errorf("locality: %s: want the demo's settings over the boutique's", spill)
	}
}

func TestStageDuration(t *testing.T) {
	for took, want := range map[time.Duration]int{
		200 * time.Millisecond: 4, time.Second: 4, 1600 * time.Millisecond: 7, time.Minute: 12,
	} {
		if got := stageFor(took); got != want {
			t.Errorf("a measurement of %s: stages of %d s, want %d", took, got, want)
		}
	}
}
