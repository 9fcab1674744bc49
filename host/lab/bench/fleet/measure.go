package fleet

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

// results of a run.
type results struct {
	options
	Machine        string
	IdleCPU        float64         // CPUs used by the API server without agents
	MemoryBefore   float64         // MiB used by it then
	WithoutAgents  [2]updateResult // updates without agents: of a small slice, of a big one
	Starts         []startResult
	SmallSlice     updateResult // updates of a slice of normal size
	BigSlice       updateResult // updates of a slice of perSlice endpoints
	Single         stats.Summary
	IdleWithAgents float64        // CPUs used by the API server with all agents and no updates
	watchesBefore  map[string]int // watches without agents
	Watches        map[string]int // the agents'
	Connections    int
	Restart        restartResult
}

// startResult is the cost of one way to start all agents.
type startResult struct {
	Name            string
	Took            float64 // s, until the last agent has synced
	CPU             float64 // s of the API server, minus its idle load
	Peak, Resident  float64 // MiB of the API server
	Bytes           float64
	AgentCPU, Agent float64 // s and MiB per agent
}

// updateResult is the cost of updates.
type updateResult struct {
	Updates int
	Rate    float64 // per second
	CPU     float64 // s of the API server, minus its idle load
	Bytes   float64
}

// restartResult is the cost of a restart of the API server.
type restartResult struct {
	Took  float64 // s, from its readiness until all watches are re-established
	CPU   float64 // s, including its own start
	Bytes float64
	Peak  float64
}

// startTimeout is generous because the agents share this machine's CPUs.
const startTimeout = 10 * time.Minute

func (o *options) measure(ctx context.Context) (*results, error) {
	r := &results{options: *o, Machine: benchutil.DescribeMachine()}
	r.progress("%d Services of %d endpoints, %d Nodes", o.services, o.endpoints, o.agents)
	s, err := newEnvironment(ctx, o.agents)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.fill(ctx, o.services, o.endpoints); err != nil {
		return nil, err
	}
	time.Sleep(o.idleDuration) // let the API server finish background work
	if r.IdleCPU, err = r.idleCPU(s); err != nil {
		return nil, err
	}
	r.MemoryBefore = s.server().RSS()
	if r.watchesBefore, err = loadgen.CountWatches(ctx, s.Cluster); err != nil {
		return nil, err
	}
	for i, slice := range r.updatedSlices() {
		if r.WithoutAgents[i], err = r.measureUpdates(ctx, s, nil, slice); err != nil {
			return nil, err
		}
	}
	for _, how := range []struct {
		name string
		over time.Duration
	}{
		{fmt.Sprintf("over %s", o.spread), o.spread},
		{"all at once", 0},
	} {
		r.progress("%s", how.name)
		c, err := r.measureStart(ctx, s, how.name, how.over)
		if err == nil && how.over == 0 {
			err = r.measureRunning(ctx, s, c)
		}
		if c != nil {
			if serr := c.stop(); err == nil {
				err = serr
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", how.name, err)
		}
	}
	return r, nil
}

func (r *results) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// idleCPU returns the number of CPUs that the API server uses without updates.
func (r *results) idleCPU(s *environment) (float64, error) {
	u, err := s.measureDuring(func() error { time.Sleep(r.idleDuration); return nil })
	return u.CPU.Seconds() / u.Took.Seconds(), err
}

// measureStart starts all agents and measures until the last one has synced.
func (r *results) measureStart(ctx context.Context, s *environment, name string, over time.Duration) (c *agentProcess, err error) {
	s.server().ResetPeakRSS()
	one := startResult{Name: name}
	u, err := s.measureDuring(func() (err error) {
		if c, err = startAgents(s.nodes, r.agents, s.dir, over); err != nil {
			return err
		}
		st, err := c.waitFor(ctx, startTimeout, 200*time.Millisecond, "all agents are synced", func(s status) bool { return s.Synced == r.agents })
		one.Took = st.LastSynced.Sub(c.started).Seconds()
		return err
	})
	if err != nil {
		return c, err
	}
	cpu, err := c.CPU()
	if err != nil {
		return c, err
	}
	one.CPU, one.Bytes = u.CPU.Seconds()-r.IdleCPU*u.Took.Seconds(), u.Bytes
	one.Peak, one.Resident = s.server().PeakRSS(), s.server().RSS()
	one.AgentCPU, one.Agent = cpu.Seconds()/float64(r.agents), c.RSS()/float64(r.agents)
	r.Starts = append(r.Starts, one)
	return c, nil
}

// measureRunning measures updates and a restart while all agents are running.
func (r *results) measureRunning(ctx context.Context, s *environment, c *agentProcess) (err error) {
	if r.Connections, err = s.connections(); err != nil {
		return err
	}
	time.Sleep(r.idleDuration)
	if r.IdleWithAgents, err = r.idleCPU(s); err != nil {
		return err
	}
	r.progress("changes")
	slices := r.updatedSlices()
	if r.SmallSlice, err = r.measureUpdates(ctx, s, c, slices[0]); err != nil {
		return err
	}
	if r.BigSlice, err = r.measureUpdates(ctx, s, c, slices[1]); err != nil {
		return err
	}
	if err := r.measureSingleUpdates(ctx, s, c, slices[0]); err != nil {
		return err
	}
	// Count watches only now: some, such as that of the Node, may start late because nothing waits for them.
	now, err := loadgen.CountWatches(ctx, s.Cluster)
	if err != nil {
		return err
	}
	r.Watches = loadgen.AddedWatches(r.watchesBefore, now)
	r.progress("restart of the API server")
	// Last, because it may fail on a small machine: the other results are kept.
	if err := r.measureRestart(ctx, s, c); err != nil {
		r.progress("restart not measured: %v", err)
		r.Restart = restartResult{}
	}
	return nil
}

// updatedSlice is a slice that is updated.
type updatedSlice struct {
	service string
	n       int
}

func (r *results) updatedSlices() [2]updatedSlice {
	return [2]updatedSlice{{loadgen.ServiceName(0), r.endpoints}, {bigService, perSlice}}
}

// nextEndpoints returns the endpoints of a slice after update i, which differ from the previous ones in one endpoint.
func (r *results) nextEndpoints(what updatedSlice, i int) []testcluster.Endpoint {
	first := r.services*r.endpoints + perSlice + 1000*what.n
	e := loadgen.Endpoints(first, what.n)
	e[i%what.n] = loadgen.Endpoints(first+what.n+i, 1)[0]
	return e
}

// measureUpdates updates a slice at the configured rate and waits until all agents have received all updates. Without
// agents it measures the writes alone.
func (r *results) measureUpdates(ctx context.Context, s *environment, c *agentProcess, what updatedSlice) (l updateResult, err error) {
	changing, err := loadgen.NewSliceUpdater(ctx, s.Cluster, what.service)
	if err != nil {
		return l, err
	}
	var before status
	if c != nil {
		if before, err = c.queryStatus(); err != nil {
			return l, err
		}
	}
	u, err := s.measureDuring(func() error {
		begin := time.Now()
		for ; time.Since(begin) < r.updateDuration; l.Updates++ {
			time.Sleep(time.Until(begin.Add(time.Duration(l.Updates) * time.Second / time.Duration(r.rate))))
			if _, _, err := changing.Update(ctx, r.nextEndpoints(what, l.Updates)...); err != nil {
				return err
			}
		}
		l.Rate = float64(l.Updates) / time.Since(begin).Seconds()
		if c == nil {
			return nil
		}
		want := before.Changes + l.Updates*r.agents
		_, err := c.waitFor(ctx, time.Minute, 50*time.Millisecond, fmt.Sprintf("%d changes have arrived", want), func(s status) bool { return s.Changes >= want })
		return err
	})
	idle := r.IdleCPU
	if c != nil {
		idle = r.IdleWithAgents
	}
	l.CPU, l.Bytes = u.CPU.Seconds()-idle*u.Took.Seconds(), u.Bytes
	return l, err
}

// measureSingleUpdates makes single updates and measures until the last agent has programmed each.
func (r *results) measureSingleUpdates(ctx context.Context, s *environment, c *agentProcess, what updatedSlice) error {
	changing, err := loadgen.NewSliceUpdater(ctx, s.Cluster, what.service)
	if err != nil {
		return err
	}
	var all []float64
	for i := range r.singleUpdates {
		before, err := c.queryStatus()
		if err != nil {
			return err
		}
		begin, _, err := changing.Update(ctx, r.nextEndpoints(what, i)...)
		if err != nil {
			return err
		}
		if _, err := c.waitFor(ctx, time.Minute, 20*time.Millisecond, "a change is there", func(s status) bool {
			return s.Changes >= before.Changes+r.agents
		}); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // then the engines program it
		done, err := c.queryStatus()
		if err != nil {
			return err
		}
		all = append(all, done.LastProgrammed.Sub(begin).Seconds()*1000)
	}
	r.Single = stats.Summarize(all)
	return nil
}

// measureRestart restarts the API server with all agents connected. It changes another object first, as happens in every
// cluster: a server that has just started does not know resource versions older than its own first list, and the agents'
// last ones are older.
func (r *results) measureRestart(ctx context.Context, s *environment, c *agentProcess) error {
	want := 0
	for _, n := range r.Watches {
		want += n
	}
	_, err := s.Cluster.Client.CoreV1().ConfigMaps(loadgen.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "something-else"},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ConfigMap %s/something-else: create: %w", loadgen.Namespace, err)
	}
	bytes, err := s.received()
	if err != nil {
		return err
	}
	if err := s.Cluster.RestartAPIServer(ctx); err != nil {
		return err
	}
	ready := time.Now()
	for {
		now, err := loadgen.CountWatches(ctx, s.Cluster)
		if err != nil {
			return err
		}
		have := 0
		for resource := range r.Watches {
			have += now[resource]
		}
		if have >= want {
			break
		}
		if time.Since(ready) > startTimeout {
			return fmt.Errorf("%d of %d watches re-established after %s", have, want, startTimeout)
		}
		time.Sleep(500 * time.Millisecond)
	}
	r.Restart.Took = time.Since(ready).Seconds()
	// An update that reaches all agents shows that all are connected.
	slice := r.updatedSlices()[0]
	changing, err := loadgen.NewSliceUpdater(ctx, s.Cluster, slice.service)
	if err != nil {
		return err
	}
	before, err := c.queryStatus()
	if err != nil {
		return err
	}
	if _, _, err := changing.Update(ctx, r.nextEndpoints(slice, r.singleUpdates)...); err != nil {
		return err
	}
	if _, err := c.waitFor(ctx, startTimeout, 50*time.Millisecond, "a change is there after the restart", func(s status) bool {
		return s.Changes >= before.Changes+r.agents
	}); err != nil {
		return err
	}
	cpu, err := s.server().CPU()
	if err != nil {
		return err
	}
	after, err := s.received()
	r.Restart.CPU, r.Restart.Bytes, r.Restart.Peak = cpu.Seconds(), after-bytes, s.server().PeakRSS()
	return err
}
