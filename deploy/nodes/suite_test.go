package nodes

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// What runs of Kubernetes' network tests: those of Services, and others that a Service proxy makes true. Not: those that this
// kernel (SCTP) or cluster (load balancers, network policies, six workers) cannot run, and session affinity timeouts, which take
// up to 20 minutes each. Those of terminating endpoints have 100 seconds for 5 rounds of connections, 12 seconds each on an idle
// machine, before their server ends: they run by themselves.
const (
	focus = `\[sig-network\].*(Services |Conntrack|Traffic Distribution|HostPort|KubeProxy|EndpointSlice|NoSNAT|Service CIDRs|Topology Hints|should check kube-proxy urls)`
	skip  = `Alpha|Beta|LoadBalancer|Disruptive|Flaky|IPv6DualStack|Networking-IPv6|Internet.connection|LocalhostNodePorts|Serial|NetworkPolicy|Netpol|SCTP|sctp|affinity timeout`

	terminating = `\[sig-network\].*Services .*fallback to .*terminating endpoints`
	// How many specs the patterns select at least, so that a change of names is seen.
	fewest            = 60
	fewestTerminating = 4
	// sideBySide is how many specs run at a time: they wait most of the time.
	sideBySide = "8"
)

// suite runs the tests that patterns select. Each has to pass.
func (c *cluster) suite(t *testing.T, tests programs.Suite, focus, skip string, fewest int) {
	dir := t.TempDir()
	repos := filepath.Join(dir, "images.yaml")
	if err := os.WriteFile(repos, []byte(programs.SuiteRegistries), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(tests.Bin, "ginkgo"), "--procs="+sideBySide, "--focus="+focus, "--skip="+skip, "--timeout=30m", "--no-color",
		"--output-dir="+dir, "--json-report=report.json", filepath.Join(tests.Bin, "e2e.test"), "--",
		"--kubeconfig="+c.Kubeconfig(), "--kubectl-path="+filepath.Join(c.Tools, "kubectl"), "--provider=skeleton", "--num-nodes=2",
		"--disable-log-dump=true", "--report-dir="+dir)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+repos, "TMPDIR="+dir, "HOME="+dir)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	began := time.Now()
	p, err := c.Outside.Start(cmd)
	if err == nil {
		err = p.Wait()
	}
	text, rerr := os.ReadFile(filepath.Join(dir, "report.json"))
	if rerr != nil {
		t.Fatalf("%v, %v\n%s", err, rerr, out.String()[max(0, out.Len()-16<<10):])
	}
	var report []struct{ SpecReports []spec }
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	passed, all := 0, time.Duration(0)
	for _, r := range report {
		for _, s := range r.SpecReports {
			switch {
			case s.LeafNodeType != "It" || s.State == "skipped" || s.State == "pending":
				continue
			case s.State == "passed":
				passed++
			default:
				t.Errorf("%s: %s\n%s\n%s", s.State, s.name(), s.Failure.Message, s.end())
			}
			all += s.RunTime
		}
	}
	t.Logf("%d specs passed in %s, %s one after the other", passed, time.Since(began).Round(time.Second), all.Round(time.Second))
	if err != nil || passed < fewest {
		t.Errorf("%v, %d specs passed\n%s", err, passed, out.String()[max(0, out.Len()-4<<10):])
	}
}

// spec is a part of ginkgo's report of a spec.
type spec struct {
	ContainerHierarchyTexts    []string
	LeafNodeType, LeafNodeText string
	State                      string
	RunTime                    time.Duration
	Failure                    struct{ Message string }
	CapturedGinkgoWriterOutput string
}

func (s *spec) name() string {
	return strings.Join(slices.Concat(s.ContainerHierarchyTexts, []string{s.LeafNodeText}), " ")
}

func (s *spec) end() string {
	return s.CapturedGinkgoWriterOutput[max(0, len(s.CapturedGinkgoWriterOutput)-8<<10):]
}
