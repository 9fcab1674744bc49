package state

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestConnectionsAreNotCountedForEachRequest: the last count answers until the next one is due, unless it lacks an endpoint.
func TestConnectionsAreNotCountedForEachRequest(t *testing.T) {
	key := func(addr string) model.EndpointKey {
		return model.EndpointKey{Addr: netip.MustParseAddrPort(addr), Protocol: model.TCP}
	}
	calls, failure := 0, error(nil)
	p := pacedCounter{count: func(_ context.Context, count map[model.EndpointKey]uint32) error {
		calls++
		for k := range count {
			count[k] = 7
		}
		return failure
	}}
	a, b := key("10.0.0.1:80"), key("10.0.0.2:80")
	ask := func(keys ...model.EndpointKey) error {
		t.Helper()
		count := map[model.EndpointKey]uint32{}
		for _, k := range keys {
			count[k] = 0
		}
		err := p.Count(t.Context(), count)
		for _, k := range keys {
			if err == nil && count[k] != 7 {
				t.Errorf("%v", count)
			}
		}
		return err
	}
	if err := errors.Join(ask(a, b), ask(a), ask(b)); err != nil || calls != 1 {
		t.Errorf("%d counts, %v", calls, err)
	}
	failure = errors.New("no permission")
	if err := ask(a, key("10.0.0.3:80")); !errors.Is(err, failure) || calls != 2 {
		t.Errorf("%d counts, %v", calls, err)
	}
}
