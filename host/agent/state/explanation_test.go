package state

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
)

// TestWaitingForAPluginIsNoError: the pool says for which plugin, and since when by the wall clock.
func TestWaitingForAPluginIsNoError(t *testing.T) {
	wall := func(ms int64) time.Time { return time.UnixMilli(ms).Add(time.Hour) }
	throttled := time.Unix(5000, 0)
	explain := func(err error, pending *policy.Pending) *Explanation {
		return NewExplanation(&planner.Explanation{
			Service: &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}}, Err: err,
			Decisions: []planner.PortDecision{{Port: &service.Port{UsesCluster: true}, Cluster: policy.Decision{Err: err, Pending: pending}}},
		}, wall)
	}
	late := fmt.Errorf("plugin p: %w", policy.ErrPending)
	x := explain(late, &policy.Pending{Plugin: "p", Since: 1000_000, ThrottledSince: throttled})
	if p := x.Pools[0].Pending; x.Error != "" || p == nil || p.Plugin != "p" || !p.Since.Equal(time.Unix(4600, 0)) ||
		p.ThrottledSince == nil || !p.ThrottledSince.Equal(throttled) {
		t.Errorf("error %q, pending %+v", x.Error, p)
	}
	if x := explain(late, nil); x.Error == "" || x.Pools[0].Pending != nil {
		t.Errorf("while the plugin is being loaded: error %q, %+v", x.Error, x.Pools[0].Pending)
	}
	if x := explain(errors.New("trap"), &policy.Pending{}); x.Error != "trap" {
		t.Errorf("a failure while the next call waits: error %q", x.Error)
	}
}
