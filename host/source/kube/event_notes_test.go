package kube

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestEventNotesAreEscaped(t *testing.T) {
	r := NewEventRecorder(nil, "n0", slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(1, 0) }, nil)
	note := "plugin says \x1b[2Ka\nforged\u202e"
	r.NodeEvent(true, "A", note)
	r.ServiceWarning(model.Name{Namespace: "shop", Name: "web"}, "B", note)
	r.SampledServiceWarning(model.Name{Namespace: "shop", Name: "web"}, "C", note)
	for range 3 {
		if e := <-r.queue; e.note != `plugin says \u001b[2Ka\nforged\u202e` {
			t.Errorf("%s: %q", e.reason, e.note)
		}
	}
}
