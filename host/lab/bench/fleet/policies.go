package fleet

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
)

// policyOptions is the size of a measurement of policies that are objects.
type policyOptions struct {
	options
	kustomize   string // the folder deploy/kustomize
	policies    int    // that are created while agents run
	nodes       int    // of the cluster of the controller
	allPolicies int    // of that cluster
}

// policyResults is what they cost.
type policyResults struct {
	policyOptions
	Machine      string
	CreatedAlone updateResult // policies, without agents
	Created      updateResult // with agents
	Received     float64      // s, from the first write until the last agent has the last one
	Rollout      rolloutResult
	AgentsIdle   float64 // CPUs of the API server with all agents
	Controller   controllerResult
	Wave         waveResult
}

// rolloutResult is a change of a policy of the whole cluster, and the NodeReports that follow.
type rolloutResult struct {
	Took    float64 // s, until all nodes have reported it
	Reports int
	CPU     float64 // s of the API server, minus its idle load
}

// PoliciesMain runs bench-cluster fleet-policies with these arguments.
func PoliciesMain(args []string) error {
	o := policyOptions{options: options{endpoints: 10, idleDuration: 5 * time.Second}}
	flags := flag.NewFlagSet("fleet-policies", flag.ExitOnError)
	flags.IntVar(&o.agents, "agents", 100, "number of agents")
	flags.IntVar(&o.services, "services", 1000, "number of Services")
	flags.IntVar(&o.policies, "policies", 1000, "policies to create while agents run, at most as many as Services")
	flags.IntVar(&o.nodes, "nodes", 5000, "nodes of the controller's cluster, with a NodeReport each")
	flags.IntVar(&o.allPolicies, "all-policies", 10000, "policies of the controller's cluster")
	flags.StringVar(&o.kustomize, "kustomize", "deploy/kustomize", "folder with the manifests of the kinds")
	flags.StringVar(&o.write, "write", "", "file to write the tables to, between the markers")
	_ = flags.Parse(args) // it exits
	return benchutil.RunInNamespace(func(ctx context.Context) error {
		r, err := o.measure(ctx)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		r.print(&text)
		return benchutil.Publish(o.write, "policies", text.Bytes())
	})
}

func (o *policyOptions) measure(ctx context.Context) (*policyResults, error) {
	r := &policyResults{policyOptions: *o, Machine: benchutil.DescribeMachine()}
	all := &results{options: o.options}
	all.progress("%d Services of %d endpoints, %d Nodes", o.services, o.endpoints, o.agents)
	s, err := newEnvironment(ctx, o.agents)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for _, step := range []func() error{
		func() error { return s.installKinds(ctx, o.kustomize, o.agents) },
		func() error { return loadgen.CreateServices(ctx, s.Cluster, 0, o.services, o.endpoints, 1) },
		func() error { return s.createPlugin(ctx) },
		func() error { return s.rollout(ctx, 1) },
		func() error { time.Sleep(o.idleDuration); return nil },
		func() (err error) { all.IdleCPU, err = all.idleCPU(s); return err },
		func() error { return r.measureAgents(ctx, s, all) },
		func() error { return r.measureController(ctx, s, all) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// create creates the policies and measures that.
func (r *policyResults) create(ctx context.Context, s *environment, idle float64, then func() error) (l updateResult, err error) {
	l.Updates = r.policies
	u, err := s.measureDuring(func() error {
		if err := s.createPolicies(ctx, 0, r.policies, 2); err != nil || then == nil {
			return err
		}
		return then()
	})
	l.CPU, l.Bytes = u.CPU.Seconds()-idle*u.Took.Seconds(), u.Bytes
	l.Rate = float64(r.policies) / u.Took.Seconds()
	return l, err
}

// measureAgents measures policies that are created, and a rollout, while agents run.
func (r *policyResults) measureAgents(ctx context.Context, s *environment, all *results) (err error) {
	all.progress("%d policies without agents", r.policies)
	if r.CreatedAlone, err = r.create(ctx, s, all.IdleCPU, nil); err != nil {
		return err
	}
	if _, err := s.Cluster.Client.CoreV1().RESTClient().Delete().AbsPath(kindsPath, "namespaces", loadgen.Namespace, "servicepolicies").DoRaw(ctx); err != nil {
		return fmt.Errorf("delete the policies: %w", err)
	}
	all.progress("start of the agents")
	c, err := all.measureStart(ctx, s, "all at once", 0)
	if err == nil {
		err = r.measureRunning(ctx, s, all, c)
	}
	if c != nil {
		if wrong := c.stop(); err == nil {
			err = wrong
		}
	}
	return err
}

func (r *policyResults) measureRunning(ctx context.Context, s *environment, all *results, c *agentProcess) error {
	reported := func(n int) func(status) bool { return func(s status) bool { return s.Reports >= n } }
	before, err := c.waitFor(ctx, startTimeout, 200*time.Millisecond, "all agents have written a report", reported(r.agents))
	if err != nil {
		return err
	}
	time.Sleep(r.idleDuration)
	if r.AgentsIdle, err = all.idleCPU(s); err != nil {
		return err
	}
	all.progress("a rollout")
	begin := time.Now()
	u, err := s.measureDuring(func() error {
		if err := s.rollout(ctx, 50); err != nil {
			return err
		}
		after, err := c.waitFor(ctx, startTimeout, 50*time.Millisecond, "all agents have reported it", reported(before.Reports+r.agents))
		r.Rollout.Took, r.Rollout.Reports = after.LastReport.Sub(begin).Seconds(), after.Reports-before.Reports
		return err
	})
	if err != nil {
		return err
	}
	r.Rollout.CPU = u.CPU.Seconds() - r.AgentsIdle*u.Took.Seconds()
	all.progress("%d policies with agents", r.policies)
	if before, err = c.queryStatus(); err != nil {
		return err
	}
	begin = time.Now()
	want := before.Objects + r.policies*r.agents
	r.Created, err = r.create(ctx, s, r.AgentsIdle, func() error {
		_, err := c.waitFor(ctx, startTimeout, 50*time.Millisecond, "all agents have all policies", func(s status) bool { return s.Objects >= want })
		r.Received = time.Since(begin).Seconds()
		return err
	})
	return err
}

func (r *policyResults) print(w io.Writer) {
	n, p := float64(r.agents), float64(r.policies)
	fmt.Fprintf(w, "Machine: %s; etcd, the API server, all agents and the controller run on it. %d agents, %d Services of %d endpoints.\n\n",
		r.Machine, r.agents, r.services, r.endpoints)
	perAgent := 1e6 * cpuPerAgent(r.CreatedAlone, r.Created, r.agents)
	perReport := 1000 * r.Rollout.CPU / float64(r.Rollout.Reports)
	fmt.Fprintln(w, "| with agents | measured |")
	fmt.Fprintln(w, "|---|---|")
	row := func(what, format string, values ...any) {
		fmt.Fprintf(w, "| %s | %s |\n", what, fmt.Sprintf(format, values...))
	}
	row("a new ServicePolicy: API server CPU without agents, ms; with all agents, ms", "%.2f; %.2f", 1000*r.CreatedAlone.CPU/p, 1000*r.Created.CPU/p)
	row("… for each agent, µs; received by it, bytes", "%.1f; %.0f", perAgent, r.Created.Bytes/n/p)
	row(fmt.Sprintf("%d of them, as fast as the API server takes them: until the last agent has the last one, s", r.policies), "%.1f", r.Received)
	row("a rollout to all agents: until the last NodeReport, s; reports", "%.1f; %d", r.Rollout.Took, r.Rollout.Reports)
	row("… API server CPU for a report, with its share of the watches, ms", "%.2f", perReport)
	fmt.Fprintf(w, "\n| the controller, %d policies, %d NodeReports | measured |\n|---|---|\n", r.allPolicies, r.nodes)
	c, wave := &r.Controller, &r.Wave
	row("start until every policy has its status, s; its CPU, s; API server's CPU, s", "%.0f; %.1f; %.1f", c.Took, c.CPU, c.ServerCPU)
	row("memory, peak, MiB", "%.0f, %.0f", c.Resident, c.Peak)
	row("a rollout to all nodes: reports, s; status after the last one, s", "%.0f; %.1f", wave.Took, wave.StatusAfter)
	row("… controller's CPU, s; API server's CPU, s; controller's peak, MiB", "%.1f; %.1f; %.0f", wave.CPU, wave.ServerCPU, wave.Peak)
	fmt.Fprintf(w, "\nComputed for 5,000 nodes: a new ServicePolicy takes %.0f ms of the API servers' CPU and %.1f MB to all nodes; a rollout, %.0f s of CPU for reports within a minute or more.\n",
		perAgent*5000/1000, r.Created.Bytes/n/p*5000/1e6, perReport*5)
}
