package metrics_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// alwaysPartial is a backend whose Apply always returns a PartialError.
type alwaysPartial struct{ backend.Backend }

func (b alwaysPartial) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	r, err := b.Backend.Apply(ctx, p, d)
	if err == nil {
		err = &backend.PartialError{Frontends: 3, Retried: true, Err: syscall.EINVAL}
	}
	return r, err
}

func TestModeSwitchUpdatesModeDependentMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.emit(service("a", 1, withPolicy("enforce")), endpoints("a", never, "n1", "n2", "n1"), synced)
		r.settle()
		info := func(mode string) string {
			return "sluice_build_info{go_version=" + runtime.Version() + ",mode=" + mode + ",version=v0.1.0}"
		}
		const failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
		r.want("in mode nftables", map[string]float64{info("nftables"): 1, "sluice_degraded_frontends": 0,
			failures + "{ip_family=IPv4}": 0})
		// The other backend supports fewer slots.
		caps := fake.Everything()
		caps.Ratios, caps.MaxTotal = true, 2
		from, err := r.engine.Swap(context.Background(), fake.Open(fake.NewKernel(fake.Options{Now: time.Now, Caps: caps})))
		if err != nil {
			t.Fatal(err)
		}
		mode := metrics.Mode{Name: "ipvs"}
		r.mode.Store(&mode)
		r.settle()
		r.want("in mode ipvs", map[string]float64{info("ipvs"): 1, "sluice_degraded_frontends": 1})
		for name := range values(t, r.metrics) {
			if strings.Contains(name, "nftables") {
				t.Errorf("%s in mode ipvs", name)
			}
		}
		r.emit(model.Change{Kind: model.ServiceKind, Name: name("a")})
		r.settle()
		r.want("degraded Service deleted", map[string]float64{"sluice_degraded_frontends": 0})
		if _, err := r.engine.Swap(context.Background(), from); err != nil {
			t.Fatal(err)
		}
		mode = metrics.Mode{Name: "nftables", NFTables: true}
		r.emit(service("a", 1, withPolicy("enforce")), endpoints("a", never, "n1", "n2", "n1"))
		r.settle()
		r.want("back in mode nftables", map[string]float64{info("nftables"): 1, "sluice_degraded_frontends": 0, failures + "{ip_family=IPv4}": 0})
	})
}

func TestUnprogrammedFrontendsAreCountedAndTheOthersAreSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		if _, err := r.engine.Swap(context.Background(), alwaysPartial{fake.Open(fake.NewKernel(fake.Options{Now: time.Now}))}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		r.emit(service("a", 1, nil), endpoints("a", never, "n1"), synced)
		r.advance(30 * time.Second)
		got := values(t, r.metrics)
		if synced := got["kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=IPv4}"]; synced < float64(begin.UnixNano())/1e9 ||
			got["sluice_unprogrammed_frontends"] != 3 || got["sluice_backend_failures_total{errno=EINVAL}"] < 5 || got["kubeproxy_sync_proxy_rules_service_changes_pending"] != 0 {
			t.Errorf("last sync %v, unprogrammed %v, failures %v", synced, got["sluice_unprogrammed_frontends"], got["sluice_backend_failures_total{errno=EINVAL}"])
		}
		if err := errors.Unwrap(&backend.PartialError{Err: syscall.EINVAL}); err != syscall.EINVAL {
			t.Error(err)
		}
	})
}
