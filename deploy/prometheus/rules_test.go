// Package prometheus tests the rules, the dashboard and the documentation for Prometheus and Grafana.
package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// rule is a recording or alerting rule.
type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Spec struct{ Groups []struct{ Rules []rule } }
	}
	if err := yaml.Unmarshal([]byte(read(t, "../kustomize/components/prometheus/rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Spec.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("%d rules", len(all))
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool runs promtool, and requires that it succeeds.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	testenv.RequireProgram(t, "promtool", "prometheus")
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestRules extracts the rules with the README's command.
func TestRules(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "README.md"), "```sh\n")
	command, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("README without the command")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(root, "deploy"), filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-euc", command)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	const tests = "rules_test.yaml"
	if err := os.WriteFile(filepath.Join(dir, tests), []byte(read(t, tests)), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", filepath.Join(dir, "sluice.rules.yaml"))
	promtool(t, "test", "rules", filepath.Join(dir, tests))
}

// TestEachAlertIsTestedAndHasARunbook checks that runbook_url leads to the alert's section of the README.
func TestEachAlertIsTestedAndHasARunbook(t *testing.T) {
	const page = "https://github.com/sluice-proxy/sluice/blob/main/deploy/prometheus/README.md#"
	readme, tests := read(t, "README.md"), read(t, "rules_test.yaml")
	alerts := 0
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts++
		_, section, ok := strings.Cut(readme, "\n### "+r.Alert+"\n\n- **Means**: ")
		section, _, _ = strings.Cut(section, "\n### ")
		if !ok || !strings.Contains(section, "\n- **Look at**: ") || !strings.Contains(section, "\n- **Do**: ") {
			t.Errorf("%s: the README has no section with Means, Look at and Do", r.Alert)
		}
		if want := page + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want || r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s: %v, %v; want the severity, a summary, and the runbook_url %s", r.Alert, r.Labels, r.Annotations, want)
		}
		if !strings.Contains(tests, "alertname: "+r.Alert+"\n") {
			t.Errorf("%s is not tested to fire in rules_test.yaml", r.Alert)
		}
	}
	if sections := strings.Count(readme, "\n### "); sections != alerts {
		t.Errorf("%d sections for %d alerts", sections, alerts)
	}
}

var (
	metricName   = regexp.MustCompile(`\b(?:sluice|kubeproxy|process|go)_\w+`)
	suffix       = regexp.MustCompile(`_(bucket|sum|count)$`)
	readmeHeader = regexp.MustCompile(`^\| name: (\w+_)… `)
	readmeRow    = regexp.MustCompile(`^\| ([\w, ]+) \| (?:counter|gauge|histogram) \|`)
	recorded     = regexp.MustCompile(`\b(?:node|service):\w+:\w+`)
)

// documented returns the metrics that host/node/metrics/README.md lists; the tests there compare that list with what sluice
// serves.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	all, prefix := map[string]bool{}, ""
	for line := range strings.Lines(read(t, "../../host/node/metrics/README.md")) {
		if m := readmeHeader.FindStringSubmatch(line); m != nil {
			prefix = m[1]
		} else if m := readmeRow.FindStringSubmatch(line); m != nil {
			for name := range strings.SplitSeq(m[1], ", ") {
				all[prefix+name] = true
			}
		}
	}
	if len(all) < 100 {
		t.Fatalf("%d metrics", len(all))
	}
	return all
}

// checkNames checks that an expression names documented metrics, and series that the rules record.
func checkNames(t *testing.T, where, expr string, known map[string]bool, rules []rule) {
	t.Helper()
	names := 0
	for _, name := range recorded.FindAllString(expr, -1) {
		names++
		found := false
		for _, r := range rules {
			found = found || r.Record == name
		}
		if !found {
			t.Errorf("%s: no rule records %s", where, name)
		}
	}
	for _, name := range metricName.FindAllString(recorded.ReplaceAllString(expr, ""), -1) {
		names++
		if !known[name] && !known[suffix.ReplaceAllString(name, "")] {
			t.Errorf("%s: there is no metric %s", where, name)
		}
	}
	if names == 0 && !strings.Contains(expr, "up{") {
		t.Errorf("%s: no metric in %s", where, expr)
	}
}

func TestRulesNameDocumentedMetrics(t *testing.T) {
	known, all := documented(t), rules(t)
	for _, r := range all {
		checkNames(t, r.Record+r.Alert, r.Expr, known, all)
	}
}
