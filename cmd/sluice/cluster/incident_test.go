package cluster

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

var update = flag.Bool("update", false, "rewrite the output in deploy/prometheus/incident.md")

// TestIncident executes deploy/prometheus/incident.md: five nodes, a new module that is cut off on one of them, Prometheus, and
// nothing but kubectl and promtool to find out. What they print is compared with the document, but for times, hashes and columns.
func TestIncident(t *testing.T) {
	testenv.RequireProgram(t, "prometheus", "prometheus")
	testenv.RequireProgram(t, "promtool", "prometheus")
	s := newScene(t, "shop")
	for i := 3; i <= 5; i++ {
		s.extraNode(i)
	}
	s.apply(web)
	for i, node := range []string{"n1", "n3", "n4"} {
		s.pod(fmt.Sprint("web-", i), "web", s.nodes[node], "")
	}
	s.stateAPI()
	old, err := os.ReadFile(s.plugins["locality"])
	s.must(err)
	next := append(old[:len(old):len(old)], 0, 8, 7, 'v', 'e', 'r', 's', 'i', 'o', 'n') // a custom section: another digest
	for i := 1; i <= 5; i++ {
		s.runWithModule(fmt.Sprint("n", i), old)
	}
	i := newIncident(s)
	i.prometheus()
	i.awaitAlerts(0)
	for node, r := range s.runs {
		module := next
		if node == "n3" {
			module = next[:len(next)/2] // the disk was full
		}
		r.replaceModule(module)
	}
	i.awaitAlerts(1)
	s.eventually("the other nodes have the new module", func() error {
		out, err := i.sh("kubectl sluice policies")
		if strings.Contains(out, "4 of 5") {
			return nil
		}
		return errors.Join(errors.New(out), err)
	})
	i.execute(map[string]func(){"copy": func() {
		s.runs["n3"].replaceModule(next)
		i.awaitAlerts(0)
		s.eventually("n3 has the new module", func() error {
			out, err := i.sh("kubectl sluice policies")
			if strings.Contains(out, "5 of 5") && !strings.Contains(out, "1 of 5") {
				return nil
			}
			return errors.Join(errors.New(out), err)
		})
	}})
}

// extraNode adds a node until the test ends.
func (s *scene) extraNode(i int) {
	s.Helper()
	name := fmt.Sprint("n", i)
	s.must(s.addPlace(s.ctx, i, string(rune('a'+(i-1)%3))))
	s.Cleanup(func() {
		s.afterwards("delete", "node", name)
		s.nodes[name].Lab.Close()
		delete(s.nodes, name)
	})
}

// runWithModule runs sluice with a module in a file of its own.
func (s *scene) runWithModule(node string, module []byte) {
	s.Helper()
	r := s.prepare(node, "")
	r.replaceModule(module)
	r.configure(fmt.Sprintf(`
plugins: [{name: locality, file: %s}]
policies: [{name: in-zone, plugins: [{name: locality}]}]
defaultPolicy: in-zone
metricsBindAddress: 0.0.0.0:10249
`+stateConfig, r.module()))
	r.start()
	r.synced()
	r.logged("loaded plugin")
}

func (r *run) module() string { return filepath.Join(r.dir, "locality.wasm") }

// replaceModule replaces the module atomically.
func (r *run) replaceModule(text []byte) {
	r.Helper()
	temp := filepath.Join(r.dir, ".new-module")
	r.must(os.WriteFile(temp, text, 0o644))
	r.must(os.Rename(temp, r.module()))
}

// incident is the shell of who looks for the cause.
type incident struct {
	*scene
	env []string
}

const prometheusAddr = "172.18.0.1:9090"

func newIncident(s *scene) *incident {
	s.Helper()
	bin, err := binaries.Find(binaries.Kubectl)
	s.must(err)
	path, err := exec.LookPath("promtool")
	s.must(err)
	kubeconfig, err := s.UserKubeconfig("on-call", "system:masters")
	s.must(err)
	return &incident{s, []string{
		"env", "PATH=" + strings.Join([]string{filepath.Dir(s.kubectlSluice), bin, filepath.Dir(path), os.Getenv("PATH")}, ":"),
		"HOME=" + s.TempDir(), "KUBECONFIG=" + kubeconfig, "PROMETHEUS=http://" + prometheusAddr,
	}}
}

// sh runs a command in the network of the API server.
func (i *incident) sh(command string) (string, error) {
	return i.network.Node.Run("", append(i.env[:len(i.env):len(i.env)], "sh", "-c", command)...)
}

// alertDelay is the delay of the alert of the document. Others keep theirs: on a slow machine Prometheus may miss a sluice for a
// while.
var alertDelay = regexp.MustCompile(`(alert: SluicePluginNotLoaded\n *expr: \|\n.*\n) *for: .*\n`)

// prometheus runs Prometheus with the alerts of the component, and that of this incident without its delay.
func (i *incident) prometheus() {
	i.Helper()
	dir := i.TempDir()
	rules, err := os.ReadFile("../../../deploy/kustomize/components/prometheus/rules.yaml")
	i.must(err)
	_, spec, ok := strings.Cut(string(rules), "\nspec:\n")
	if !ok {
		i.Fatal("the rules have no spec")
	}
	spec = alertDelay.ReplaceAllString(strings.ReplaceAll("\n"+spec, "\n  ", "\n"), "$1")
	i.must(os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(spec), 0o644))
	var targets strings.Builder
	for n := 1; n <= 5; n++ {
		name := fmt.Sprint("n", n)
		fmt.Fprintf(&targets, "  - {targets: ['%s'], labels: {node: %s, instance: %s, container: sluice}}\n", netip.AddrPortFrom(i.nodes[name].addr, 10249), name, name)
	}
	i.must(os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte("global: {scrape_interval: 5s, scrape_timeout: 5s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n"+
		"- job_name: kube-proxy\n  honor_labels: true\n  static_configs:\n"+targets.String()), 0o644))
	cmd, log := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+prometheusAddr, "--log.level=warn"), &testnet.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := i.network.Node.Start(cmd)
	i.must(err)
	i.Cleanup(func() {
		p.Kill()
		if i.Failed() {
			i.Logf("prometheus:\n%s", log)
		}
	})
}

// awaitAlerts waits until all nodes are scraped and so many alerts fire.
func (i *incident) awaitAlerts(n int) {
	i.Helper()
	i.eventually(fmt.Sprint(n, " alerts"), func() error {
		up, err := i.sh(`promtool query instant $PROMETHEUS 'sum(up)'`)
		if err != nil || !strings.Contains(up, "=> 5 @") {
			return errors.Join(errors.New(up), err)
		}
		out, err := i.sh(`promtool query instant $PROMETHEUS 'ALERTS{alertstate="firing"}'`)
		if got := strings.Count(out, "ALERTS{"); err != nil || got != n {
			return errors.Join(fmt.Errorf("%d alerts\n%s", got, out), err)
		}
		return nil
	})
}

var (
	commandBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```\n")
	// What differs from run to run.
	runDependent = []struct {
		pattern *regexp.Regexp
		text    string
	}{
		{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
		{regexp.MustCompile(`\d\d:\d\d:\d\d`), "TIME"},
		{regexp.MustCompile(`@\[[\d.]+\]`), "@[TIME]"},
		{regexp.MustCompile(`\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?m?s\b`), "DURATION"},
		{regexp.MustCompile(`\b[0-9a-f]{12,64}\b…?`), "HASH"},
		{regexp.MustCompile(`\b10\.(?:96|244)\.\d+\.\d+`), "ADDRESS"},
		{regexp.MustCompile(`\b\d{4,8}\b`), "NUMBER"}, // ports and sizes
		{regexp.MustCompile(`[ ─]{2,}`), " "},
	}
)

// withoutRunDependent returns an output without what differs from run to run.
func withoutRunDependent(s string) string {
	for _, r := range runDependent {
		s = r.pattern.ReplaceAllString(s, r.text)
	}
	return strings.TrimSpace(s)
}

// execute executes the commands of the document. actions are those that are described and not commands of these tools: a line "#
// NAME: …".
func (i *incident) execute(actions map[string]func()) {
	i.Helper()
	const file = "../../../deploy/prometheus/incident.md"
	text, err := os.ReadFile(file)
	i.must(err)
	modules := regexp.MustCompile(`/[^ "]*/locality\.wasm`)
	blocks := 0
	out := commandBlock.ReplaceAllStringFunc(string(text), func(block string) string {
		blocks++
		body := commandBlock.FindStringSubmatch(block)[1]
		command, want, _ := strings.Cut(body, "\n")
		if name, _, ok := strings.Cut(strings.TrimPrefix(command, "# "), ":"); strings.HasPrefix(command, "# ") && ok && actions[name] != nil {
			actions[name]()
			return block
		}
		command, ok := strings.CutPrefix(command, "$ ")
		if !ok {
			i.Fatalf("%s: %q is no command", file, command)
		}
		got := ""
		i.eventually(command, func() error { // a node may be late, and Prometheus
			got, _ = i.sh(command) // what it prints shows whether it has failed
			got = modules.ReplaceAllString(got, "/var/lib/sluice/locality.wasm")
			if !*update && withoutRunDependent(got) != withoutRunDependent(want) {
				return fmt.Errorf("it prints\n%s\n--- the document has\n%s", withoutRunDependent(got), withoutRunDependent(want))
			}
			return nil
		})
		return "```console\n$ " + command + "\n" + strings.TrimRight(got, "\n") + "\n```\n"
	})
	if blocks < 6 {
		i.Errorf("%d commands in the document", blocks)
	}
	if *update {
		i.must(os.WriteFile(file, []byte(out), 0o644))
	}
}
