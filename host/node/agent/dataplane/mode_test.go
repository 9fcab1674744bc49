package dataplane

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
)

func TestTableHasTheModesOfTheConfiguration(t *testing.T) {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
		if m.Caps == nil || m.Open == nil || m.Probe == nil || m.Read == nil || m.Cleanup == nil {
			t.Errorf("mode %s: a required function is missing: %+v", m.Name, m)
		}
	}
	if All().Get(config.ModeNFTables).ResetTCP == nil || All().Get(config.ModeIPVS).ResetTCP != nil {
		t.Error("mode nftables has to be told which TCP connections it is to reset, mode ipvs resets all that conntrack does not know")
	}
	if !slices.Equal(names, config.Modes()) {
		t.Errorf("modes %v, the configuration accepts %v", names, config.Modes())
	}
}

func TestResetTCPIsThatOfTheModeInUse(t *testing.T) {
	list := []plan.Connection{{Client: netip.MustParseAddrPort("10.244.0.9:4000"), Frontend: netip.MustParseAddrPort("10.96.0.10:80")}}
	modes := Modes{{Name: "remembers", ResetTCP: func(_ context.Context, l []plan.Connection) (int, error) { return len(l), nil }}, {Name: "resets all"}}
	for mode, want := range map[string]int{"remembers": 1, "resets all": 0} {
		p := Plane{modes: modes, cfg: &config.Config{Mode: mode}}
		if left, err := p.ResetTCP(t.Context(), list); left != want || err != nil {
			t.Errorf("mode %s: %d, %v", mode, left, err)
		}
	}
}

// TestResetTCPDoesNotWaitForDraining, which may wait for the kernel: the engine calls it in its loop.
func TestResetTCPDoesNotWaitForDraining(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	p := Plane{
		modes: Modes{{Name: "old", Drain: func(context.Context, *config.Config, *slog.Logger, bool) (int, error) {
			close(begun)
			<-ended
			return 0, nil
		}}, {Name: "new"}},
		cfg: &config.Config{Mode: "new"}, log: slog.New(slog.DiscardHandler),
	}
	p.DrainOthers()
	<-begun
	var stopping sync.WaitGroup
	stopping.Go(p.stopDraining)
	testenv.Eventually(t, "stopDraining has begun", func() bool {
		free := p.draining.TryLock()
		if free {
			p.draining.Unlock()
		}
		return !free
	})
	reset := make(chan struct{})
	go func() {
		_, _ = p.ResetTCP(t.Context(), nil)
		close(reset)
	}()
	select {
	case <-reset:
	case <-time.After(time.Minute):
		t.Error("waits for the end of draining")
	}
	close(ended)
	stopping.Wait()
	<-reset
}
