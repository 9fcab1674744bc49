package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// newCounting is a plugin that counts its decisions about each endpoint in the state of the endpoint, and what it has read.
func newCounting(needs uint32) (*needsPlugin, *[]string) {
	p, read := newNeedy(needs), new([]string)
	decide := p.decide
	p.decide = func(req *abi.Request, resp *abi.Response) error {
		*read = (*read)[:0]
		for i := range req.Endpoints {
			n := byte(0)
			if len(req.EndpointStates) > 0 {
				n = req.EndpointStates[i*abi.MaxEndpointState+3]
			}
			*read = append(*read, fmt.Sprint(n))
			resp.EndpointStates = append(resp.EndpointStates, make([]byte, abi.MaxEndpointState)...)
			if req.Endpoints[i].Addr.Addr().As4()[3] != 1 { // the second one never has any
				resp.EndpointStates[i*abi.MaxEndpointState+3] = n + 1
			}
		}
		return decide(req, resp)
	}
	return p, read
}

func TestStatesOfEndpointsAreKeptByAddress(t *testing.T) {
	p, read := newCounting(abi.NeedEndpointState)
	b := newNeedyFixture(p)
	all := slices.Clone(b.in.Port.Endpoints)
	expect := func(what, want string) {
		t.Helper()
		b.now = b.now.Add(time.Minute)
		b.in.Zone += "x" // another input
		if d, _ := b.decide(); d.Err != nil {
			t.Fatalf("%s: %v", what, d.Err)
		}
		if got := strings.Join(*read, " "); got != want {
			t.Errorf("%s: the plugin reads %s, want %s", what, got, want)
		}
	}
	expect("first", "0 0 0")
	expect("again", "1 0 1")
	b.in.Port.Endpoints = slices.Clone(all[1:])
	expect("the first is gone", "0 2")
	b.in.Port.Endpoints = slices.Clone(all)
	expect("it has returned", "0 0 3")

	b.restart(t)
	expect("after a restart", "1 0 4")
}

func TestStatesOfEndpointsAreForPluginsThatAskForThem(t *testing.T) {
	p, read := newCounting(0)
	b := newNeedyFixture(p)
	for range 2 {
		b.in.Zone += "x"
		b.decide()
	}
	if got := strings.Join(*read, " "); got != "0 0 0" {
		t.Errorf("the plugin reads %s", got)
	}
	p = newNeedy(abi.NeedEndpointState)
	p.decide = func(_ *abi.Request, resp *abi.Response) error {
		resp.EndpointStates = make([]byte, 7)
		return nil
	}
	b = newNeedyFixture(p)
	if d, _ := b.decide(); d.Err == nil || !strings.Contains(d.Err.Error(), "7 bytes of states of endpoints") {
		t.Error(d.Err)
	}
}

// What others write into a checkpoint does no harm.
func TestSavedStatesOfEndpointsAreChecked(t *testing.T) {
	text := `[{"addr":"10.0.0.2:80","state":"AAE="},{"addr":"10.0.0.1:80","state":"` + strings.Repeat("AQEB", 11) + `"},{"addr":"","state":"AQ=="}]`
	var saved []savedEndpointState
	if err := json.Unmarshal([]byte(text), &saved); err != nil {
		t.Fatal(err)
	}
	got := restoreEndpointStates(saved)
	eps := []abi.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}, {Addr: netip.MustParseAddrPort("10.0.0.2:80")}, {Addr: netip.MustParseAddrPort("10.0.0.3:80")}}
	want := make([]byte, 3*abi.MaxEndpointState)
	want[abi.MaxEndpointState+1] = 1
	if b := got.unpack(nil, eps); !slices.Equal(b, want) || got.width != 2 {
		t.Errorf("%x, width %d", b, got.width)
	}
}

// A plugin that writes states for all endpoints of many Services makes no checkpoint that is too large to be read.
func TestSavedStatesOfEndpointsAreBounded(t *testing.T) {
	e := NewEvaluator(nil)
	states := make([]savedEndpointState, maxSavedEndpointStates*3/4)
	for name, n := range map[string]int{"a": len(states), "b": len(states) / 2, "c": len(states) / 3, "d": 1} {
		key := PoolKey{Port: model.PortName{Service: model.Name{Namespace: "shop", Name: name}}}
		e.pools[key] = &poolState{enforced: chain{saved: []savedStep{{Plugin: "p", State: []byte("s"), Endpoints: states[:n]}}}}
	}
	text, err := e.Save(Epoch{})
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(`"addr"`)); n != maxSavedEndpointStates || bytes.Count(text, []byte(`"state":"cw=="`)) != 4 {
		t.Errorf("%d states are saved, want those of a and c: %d", n, maxSavedEndpointStates)
	}
	if want := len(states)/2 + 1; e.OmittedStates != want {
		t.Errorf("%d states are omitted, want those of b and d: %d", e.OmittedStates, want)
	}
	delete(e.pools, PoolKey{Port: model.PortName{Service: model.Name{Namespace: "shop", Name: "a"}}})
	if _, err := e.Save(Epoch{}); err != nil || e.OmittedStates != 0 {
		t.Errorf("without a: %d are omitted, %v", e.OmittedStates, err)
	}
}
