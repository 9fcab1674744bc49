package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

var sample = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`)

// checkQueries has Prometheus evaluate all queries of the dashboard over metrics that sluice has served, with the labels that the
// PodMonitor sets, and checks that each has a result.
func checkQueries(t *testing.T, served string) {
	testenv.RequireProgram(t, "promtool", "prometheus")
	const deploy = "../../../deploy/"
	rules, err := os.ReadFile(deploy + "kustomize/components/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var resource struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(rules, &resource); err != nil {
		t.Fatal(err)
	}
	board, err := os.ReadFile(deploy + "prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(board, &dashboard); err != nil {
		t.Fatal(err)
	}

	type (
		object map[string]any
		list   []object
	)
	const target = `job="kube-proxy",container="sluice",node="n1",instance="n1"`
	series := list{{"series": "up{" + target + "}", "values": strings.Repeat("1 ", 11)}}
	for _, m := range sample.FindAllStringSubmatch(served, -1) {
		labels := target
		if m[2] != "" {
			labels = m[2] + "," + target
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		var values strings.Builder
		for i := 1.0; i <= 11; i++ { // counters must grow
			fmt.Fprint(&values, v*i, " ")
		}
		series = append(series, object{"series": m[1] + "{" + labels + "}", "values": values.String()})
	}
	queries := list{}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer("$node", ".*", "$__rate_interval", "5m").Replace(q.Expr)
			queries = append(queries, object{"expr": "count(" + expr + ") > bool 0", "eval_time": "10m", "exp_samples": list{{"labels": "{}", "value": 1}}})
		}
	}
	if len(series) < 100 || len(queries) < 20 {
		t.Fatalf("%d series, %d queries", len(series), len(queries))
	}
	test, err := json.Marshal(object{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m",
		"tests": list{{"interval": "1m", "input_series": series, "promql_expr_test": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"rules.yaml": resource.Spec, "test.yaml": test} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("promtool", "test", "rules", filepath.Join(dir, "test.yaml")).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}
