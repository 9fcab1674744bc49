package main

import (
	"testing"

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
