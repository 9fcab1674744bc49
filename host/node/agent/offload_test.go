package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// offloadResults is a backend that returns one result after the other.
type offloadResults struct {
	*fake.Backend
	list []backend.Offload
}

// SyncOffload implements backend.Offloader.
func (b *offloadResults) SyncOffload(context.Context, func() (string, error)) backend.Offload {
	o := b.list[0]
	b.list = b.list[1:]
	return o
}

// TestOffloadIsReportedWhenItChanges: once for each reason, and when it begins.
func TestOffloadIsReportedWhenItChanges(t *testing.T) {
	var log testenv.Buffer
	b := &offloadResults{list: []backend.Offload{
		{}, {Frontends: 2, Reason: "one"}, {Frontends: 3, Reason: "one"}, {Frontends: 3, Reason: "two", Failed: 1},
		{Frontends: 3, Links: 256, Others: 4, Failed: 1}, {Frontends: 3, Links: 250, Failed: 1}, {},
	}}
	o := &offloader{backend: func() backend.Backend { return b }, log: slog.New(slog.NewTextHandler(&log, nil))}
	for i, want := range []struct {
		logged  string // "": nothing
		metrics metrics.Offload
	}{
		{"", metrics.Offload{}},
		{"reason=one", metrics.Offload{Frontends: 2}},
		{"", metrics.Offload{Frontends: 3}},
		{"reason=two", metrics.Offload{Frontends: 3, Failures: 1}},
		{"links=256 links_left_out=4", metrics.Offload{Frontends: 3, Links: 256, LinksLeftOut: 4, Failures: 1}},
		{"", metrics.Offload{Frontends: 3, Links: 250, Failures: 1}},
		{"", metrics.Offload{}},
	} {
		before := len(log.String())
		o.sync(t.Context())
		logged := log.String()[before:]
		if (logged != "") != (want.logged != "") || !strings.Contains(logged, want.logged) || o.metrics() != want.metrics {
			t.Errorf("step %d: %q, %+v, want %+v", i, logged, o.metrics(), want)
		}
	}
	o.backend = func() backend.Backend { return b.Backend } // of a mode without flowtables
	o.sync(t.Context())
}
