package cluster

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var dashboardMetric = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([\\w, ]*) ?\\| ")

// checkKubeProxyDashboards checks that sluice serves the metrics and labels which deploy/prometheus/README.md says that public
// dashboards made for kube-proxy use.
func checkKubeProxyDashboards(t *testing.T, served string) {
	t.Helper()
	readme, err := os.ReadFile("../../../deploy/prometheus/README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := dashboardMetric.FindAllStringSubmatch(string(readme), -1)
	if len(rows) < 8 {
		t.Fatalf("%d metrics in the README", len(rows))
	}
	for _, row := range rows {
		name := row[1]
		if name == "up" {
			continue
		}
		series := regexp.MustCompile(`(?m)^` + name + `(?:_bucket|_count)?(\{[^}]*\})? `).FindStringSubmatch(served)
		if series == nil {
			t.Errorf("no %s is served", name)
			continue
		}
		for label := range strings.FieldsFuncSeq(row[2], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !strings.Contains(series[1], label+`="`) {
				t.Errorf("%s has no label %s: %s", name, label, series[0])
			}
		}
	}
}
