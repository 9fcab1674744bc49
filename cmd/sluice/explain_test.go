package main

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/state"
)

func TestKernelWeightsArePrintedPerFrontendWhereTheyDiffer(t *testing.T) {
	kernel := []state.KernelShare{{Frontend: "10.96.0.1:80/TCP", Weight: 3, Total: 3}, {Frontend: "*4:30080/TCP", Weight: 3, Total: 3}}
	if got, want := kernelText(&state.Endpoint{Kernel: kernel}), "3 of 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	kernel[1].Connections = &state.Connections{Active: 2, Inactive: 7}
	if got, want := kernelText(&state.Endpoint{Kernel: kernel}), "10.96.0.1:80/TCP: 3 of 3, *4:30080/TCP: 3 of 3 (2 active, 7 inactive)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPoolThatWaitsForItsPluginSaysSo(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var out strings.Builder
	printPool(&out, &state.Pool{Port: "http", Pending: &state.Pending{Plugin: "zone-spill", Since: at, ThrottledSince: &at}}, nil)
	want := "waiting for plugin zone-spill since 2026-01-01T12:00:00Z; throttled since 2026-01-01T12:00:00Z: it has used up its share of CPU time\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s\nwant %s", out.String(), want)
	}
}
