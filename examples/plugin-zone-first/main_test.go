package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func TestSameZoneGetsFourTimesTheShare(t *testing.T) {
	req := sdktest.NewRequest("zone-a", nil, sdktest.Ready("zone-a"), sdktest.Ready("zone-b"), sdktest.Unchosen("zone-a"))
	resp, err := sdktest.Run(zoneFirst{}, "", req)
	if err != nil {
		t.Fatal(err)
	}
	if got := sdktest.Answers(resp); !slices.Equal(got, []float64{4, 1, 0}) {
		t.Errorf("shares %v, want 4, 1, 0", got)
	}
}

func TestREADMEShowsThisPlugin(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(source)+"```\n") {
		t.Error("the Go block in README.md at the root is not main.go")
	}
}
