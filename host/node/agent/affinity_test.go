package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestFullServicePortsAreReportedOnce(t *testing.T) {
	var out strings.Builder
	a := &Agent{log: slog.New(slog.NewTextHandler(&out, nil)), telemetry: &telemetry{}}
	ports := func(n int) (list []model.PortName) {
		for i := range n {
			list = append(list, model.PortName{Service: model.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Port: "http"})
		}
		return list
	}
	full := map[model.PortName]bool{}
	for _, c := range []struct{ full, lines int }{{0, 0}, {2, 2}, {2, 0}, {3, 1}, {1, 0}, {0, 1}, {0, 0}, {2*maxFullLogged + 5, maxFullLogged + 1}, {0, 1}} {
		out.Reset()
		full = a.reportFull(full, ports(c.full))
		if got := strings.Count(out.String(), "\n"); got != c.lines || len(full) != c.full {
			t.Errorf("%d full: %d lines, want %d:\n%s", c.full, got, c.lines, out.String())
		}
	}
}
