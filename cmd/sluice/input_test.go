package main

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
)

func TestHintIfThisHostIsNotANode(t *testing.T) {
	cfg := config.Default()
	cfg.HostnameOverride = "laptop"
	with := model.NewSnapshot()
	with.Nodes["laptop"] = &model.Node{Name: "laptop"}
	for name, c := range map[string]struct {
		in      inputFlags
		cluster *model.Snapshot
		hint    bool
	}{
		"an API server that has no such Node": {inputFlags{}, model.NewSnapshot(), true},
		"one that has":                        {inputFlags{}, with, false},
		"a Node is named":                     {inputFlags{node: "laptop"}, model.NewSnapshot(), false},
		"a folder":                            {inputFlags{sourceFlags: sourceFlags{source: "manifests"}}, model.NewSnapshot(), false},
	} {
		if got := c.in.hint(cfg, c.cluster); strings.Contains(got, "Node laptop: not found in the cluster; set --node") != c.hint || (got != "") != c.hint {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestEndlessInputIsRefused(t *testing.T) {
	endless, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Close()
	for _, name := range []string{"-", "/dev/zero"} {
		if _, err := readInput(endless, name); err == nil || !strings.Contains(err.Error(), name+": larger than 8 MiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
