package main

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestMissingNodeIsReportedWithThoseThereAre(t *testing.T) {
	nodes := func(names ...string) *model.Snapshot {
		s := model.NewSnapshot()
		for _, n := range names {
			s.Nodes[n] = &model.Node{Name: n}
		}
		return s
	}
	api, folder := inputFlags{}, inputFlags{sourceFlags: sourceFlags{source: "manifests"}}
	for _, c := range []struct {
		in      inputFlags
		cluster *model.Snapshot
		want    string
	}{
		{api, nodes(), "Node laptop: not found in the cluster; set --node to plan for another Node"},
		{api, nodes("laptop"), ""},
		{folder, nodes(), ""},
		{folder, nodes("a1", "laptop"), ""},
		{folder, nodes("b1", "a1"), "Node laptop: not found in manifests; set --node to one of its Nodes: a1, b1"},
		{folder, nodes("b1", "Lap-top"), `Node laptop: not found in manifests (did you mean "Lap-top"?); set --node to one of its Nodes: Lap-top, b1`},
		{folder, nodes(strings.Split("a b c d e f g h i j k l", " ")...), "Node laptop: not found in manifests; set --node to one of its Nodes: a, b, c, d, e, f, g, h, i, j and 2 more"},
	} {
		if got := c.in.missingNode("laptop", c.cluster); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
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
