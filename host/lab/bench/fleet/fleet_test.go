package fleet

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/reporter"
)

func TestMain(m *testing.M) {
	for name, main := range map[string]func([]string) error{AgentsCommand: AgentsMain, ControllerCommand: ControllerMain} {
		if len(os.Args) > 1 && os.Args[1] == name {
			if err := main(os.Args[2:]); err != nil {
				panic(err)
			}
			return
		}
	}
	testnet.Main(m)
}

// TestScaleRun runs all of it with a few agents: every figure is there, and they fit each other.
func TestScaleRun(t *testing.T) {
	_, err := binaries.Find(binaries.Cluster()...)
	testenv.Require(t, err)
	o := options{agents: 4, services: 50, endpoints: 5, spread: time.Second, rate: 10, updateDuration: time.Second, singleUpdates: 3, idleDuration: 200 * time.Millisecond}
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	r.print(&text)
	t.Log(text.String())
	for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		if r.Watches[resource] != o.agents {
			t.Errorf("%d watches of %s by %d agents", r.Watches[resource], resource, o.agents)
		}
	}
	if len(r.Watches) != 4 || r.Connections != o.agents {
		t.Errorf("watches %v, %d connections of %d agents", r.Watches, r.Connections, o.agents)
	}
	for _, s := range r.Starts {
		if s.Took <= 0 || s.Bytes <= 0 || s.Agent <= 0 || s.AgentCPU <= 0 || s.Peak < s.Resident {
			t.Errorf("%+v", s)
		}
	}
	if got := r.Starts[0].Took; got < 0.7 {
		t.Errorf("agents that start over %s have all synced after %v s", o.spread, got)
	}
	// A slice of 100 endpoints is some ten times that of 5.
	if small, large := r.SmallSlice.Bytes/float64(r.SmallSlice.Updates), r.BigSlice.Bytes/float64(r.BigSlice.Updates); small <= 0 || large < 3*small {
		t.Errorf("a change of a small slice takes %.0f bytes to all agents, of a big one %.0f", small, large)
	}
	if r.Single.N != o.singleUpdates || r.Single.Median <= 0 {
		t.Errorf("changes one at a time: %+v", r.Single)
	}
	if r.Restart.CPU <= 0 || r.Restart.Peak <= 0 {
		t.Errorf("restart: %+v", r.Restart)
	}
	if strings.Contains(text.String(), "NaN") || strings.Contains(text.String(), "Inf") {
		t.Error("the tables lack figures")
	}
}

// TestPoliciesRun runs the measurement of policies with a few agents, nodes and policies.
func TestPoliciesRun(t *testing.T) {
	_, err := binaries.Find(binaries.Cluster()...)
	testenv.Require(t, err)
	o := policyOptions{options: options{agents: 4, services: 20, endpoints: 5, idleDuration: 200 * time.Millisecond},
		kustomize: "../../../../deploy/kustomize", policies: 10, nodes: 12, allPolicies: 30}
	r, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	r.print(&text)
	t.Log(text.String())
	if r.Rollout.Reports < o.agents || r.Created.Bytes <= 0 || r.Created.Updates != o.policies || r.Received <= 0 {
		t.Errorf("agents: %+v", r)
	}
	if c := &r.Controller; c.Took <= 0 || c.CPU <= 0 || c.Resident < 5 || c.Peak < c.Resident/2 {
		t.Errorf("controller: %+v", c)
	}
	if w := &r.Wave; w.Took < 11*reporter.Spread.Seconds() || w.StatusAfter <= 0 || w.CPU <= 0 {
		t.Errorf("rollout: %+v", w)
	}
	if strings.Contains(text.String(), "NaN") || strings.Contains(text.String(), "Inf") {
		t.Error("the tables lack figures")
	}
}

func TestFailedAgentIsReported(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(kubeconfig(dir, 0), []byte("no kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	var in, out = strings.NewReader(""), bytes.Buffer{}
	if err := runAgents(1, dir, 0, in, &out); err != nil {
		t.Fatal(err)
	}
	c, err := startAgentsForTest(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.waitFor(t.Context(), time.Minute, 10*time.Millisecond, "an agent is synced", func(s status) bool { return s.Synced == 1 })
	if err == nil || !strings.Contains(err.Error(), "agent 0") {
		t.Errorf("an agent with a bad kubeconfig: %v", err)
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
}

func startAgentsForTest(t *testing.T, dir string) (*agentProcess, error) {
	t.Helper()
	lab, err := testnet.New()
	if err != nil {
		return nil, err
	}
	t.Cleanup(lab.Close)
	return startAgents(lab.Node, 1, dir, 0)
}

func TestExtrapolationIsLinear(t *testing.T) {
	r := &results{
		options: options{agents: 100}, MemoryBefore: 1000, Watches: map[string]int{"services": 100, "endpointslices": 100},
		Starts:        []startResult{{}, {Bytes: 100 << 20, CPU: 50, Resident: 1100}},
		WithoutAgents: [2]updateResult{{Updates: 100, CPU: 1}, {Updates: 10, CPU: 1}},
		SmallSlice:    updateResult{Updates: 100, CPU: 2, Bytes: 100 * 100 * 1000},
		BigSlice:      updateResult{Updates: 100, CPU: 5, Bytes: 100 * 100 * 10000}, // less than the writes alone: noise
	}
	got := r.extrapolate(1024)
	want := extrapolation{
		Nodes: 1024, Watches: 2048, StartGiB: 1, StartCPU: 512, MemoryGiB: 1, SmallMbit: 1024 * 1000 * 8 / 1e6, BigMbit: 1024 * 10000 * 8 / 1e6,
		SmallRate: 1 / (0.01 / 100 * 1024), BigRate: got.BigRate,
	}
	if math.Abs(got.SmallRate-want.SmallRate) > 1e-6 {
		t.Errorf("changes a second: %v, want %v", got.SmallRate, want.SmallRate)
	}
	want.SmallRate = got.SmallRate
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got.BigRate <= 0 || math.IsInf(got.BigRate, 0) {
		t.Errorf("a negative cost yields %v changes a second", got.BigRate)
	}
}
