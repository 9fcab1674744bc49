package main

import (
	"os"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// TestSDKsDecideTheSameInTwoHosts asks the examples of all SDKs in sluice's host and in one in JavaScript, which share no code:
// the answers of both hosts, and of all languages, are equal.
func TestSDKsDecideTheSameInTwoHosts(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	testenv.RequireProgram(t, "node", "nodejs")
	two := map[string]hosts.Host{}
	for name, command := range map[string][]string{"sluice": {os.Args[0], "adapter"}, "JavaScript": {"node", "../../../sdk/tck/hosts/testdata/host.mjs"}} {
		h, err := hosts.Start(os.Stderr, command[0], command[1:]...)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		two[name] = h
	}
	for policy, settings := range map[string]string{"zone-weight": `{"factor": 7, "busyConnections": 20}`, "slow-start": `{"steps": 4, "stepDuration": "10s"}`,
		"tiers": `{"factor": 0.5, "only": true, "note": "a \u003c b", "tiers": ["gold", "silver"]}`} {
		var want []*hosts.Response
		for _, guest := range testenv.SDKGuests(t, policy) {
			for name, host := range two {
				do := func(c *hosts.Command) *hosts.Answer {
					c.Plugin = "guest"
					a, err := host.Do(t.Context(), c)
					if err != nil || a.Error != "" {
						t.Fatalf("%s in %s, host %s: %s: %v %v", policy, guest.Language, name, c.Op, err, a)
					}
					return a
				}
				do(&hosts.Command{Op: hosts.OpLoad, Module: guest.File, Settings: &settings})
				var got []*hosts.Response
				var state []byte
				for _, s := range wasm.Samples() {
					s.Request.State = state
					r := do(&hosts.Command{Op: hosts.OpDecide, Request: hosts.WithoutNulls(s.Request)}).Response
					got, state = append(got, r), r.State
				}
				do(&hosts.Command{Op: hosts.OpUnload})
				if want == nil {
					want = got
				}
				for i := range want {
					if !reflect.DeepEqual(got[i], want[i]) {
						t.Errorf("%s in %s, host %s: answer %d is %+v, want %+v", policy, guest.Language, name, i, got[i], want[i])
					}
				}
			}
		}
		if reflect.DeepEqual(want[0].Results, want[len(want)-1].Results) {
			t.Errorf("%s: all answers are equal", policy)
		}
	}
}
