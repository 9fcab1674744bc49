package simulation

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Verbs are the statements of a timeline.
var verbs = scenario.NewVerbs(
	"zone NAME lost|back [detect=DURATION] [evict=DURATION] [startup=DURATION]",
	"node NAME lost|back [detect=DURATION] [evict=DURATION] [startup=DURATION]",
	"drain SERVICE [pods=N] [grace=DURATION] [startup=DURATION]",
	"scale SERVICE N [startup=DURATION] [grace=DURATION]",
	"flap SERVICE ENDPOINT [period=DURATION] [for=DURATION]",
	"silent SERVICE ENDPOINT",
	"refuse SERVICE ENDPOINT",
	"slow SERVICE ENDPOINT [delay=DURATION]",
	"answer SERVICE ENDPOINT",
	"rollout SERVICE [maxSurge=N] [maxUnavailable=N] [startup=DURATION] [grace=DURATION]",
	"until DURATION",
)

// CheckTimeline returns an error if a statement has another form than its verb allows.
func CheckTimeline(f *scenario.File) error { return verbs.Check(f) }

// Defaults of the options. Those of Nodes are the defaults of kube-controller-manager (--node-monitor-grace-period) and of the admission
// plugin DefaultTolerationSeconds; those of Pods are the default terminationGracePeriodSeconds, and a guess at the time to become ready.
const (
	defaultDetect  = 50 * time.Second
	defaultEvict   = 5 * time.Minute
	defaultGrace   = 30 * time.Second
	defaultStartup = 10 * time.Second
	defaultFlap    = 10 * time.Second
	defaultDelay   = 3 * time.Second
	afterLast      = 30 * time.Second // how long a timeline without `until` goes on
)

// Limits of a timeline.
const (
	maxDuration = 24 * time.Hour
	maxSteps    = 200_000 // statements and what follows from them
	maxNewPods  = 100_000
	maxCopied   = 10_000_000 // endpoints of all versions of slices, some 100 bytes each
	maxEvents   = 1000       // that the Result lists
)

// timeline computes the world from a scenario.
type timeline struct {
	file    *scenario.File
	cluster *model.Snapshot
	random  *rand.Rand
	world   *world

	now          time.Duration
	queue        stepQueue
	steps        int
	err          error
	last         time.Duration // of a change
	nodes        map[string]*nodeState
	byZone       map[string][]*nodeState // those where Pods can be placed, in random order
	pods         map[model.Name]*pod     // by name
	podAt        map[netip.Addr]*pod
	services     map[model.Name][]*pod               // in order of their first address
	slices       map[model.Name]*model.EndpointSlice // that have changed
	own          map[model.Name]bool                 // those of slices that were made at the present time
	touched      map[model.Name]bool                 // Services that have changed at the present time
	nodesChanged bool
	made         int            // Pods
	madeIn       map[string]int // Pods, by zone
	copied       int            // endpoints of slices
	ownPods      bool           // world.pods is not that of the cluster
	until        time.Duration  // the end; -1: what is scheduled
	addrs        [2]netip.Addr  // the next addresses of new Pods: IPv4, IPv6
}

// step is something that happens.
type step struct {
	at  time.Duration
	seq int
	do  func()
}

// stepQueue implements heap.Interface, ordered by time, then in the order in which they were added.
type stepQueue []step

func (q stepQueue) Len() int { return len(q) }
func (q stepQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q stepQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *stepQueue) Push(x any) { *q = append(*q, x.(step)) }

// Pop implements heap.Interface.
func (q *stepQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// newWorld returns the world of a cluster with a timeline, which may be nil.
func newWorld(cluster *model.Snapshot, file *scenario.File, seed int64) (*world, error) {
	w := &world{
		start:   startOf(cluster),
		cluster: cluster, services: map[model.Name][]version{}, fates: map[string][]time.Duration{}, answers: map[netip.Addr][]answer{},
		pods: cluster.Pods, zones: zonesOf(cluster), events: []Event{}, nodes: []nodesVersion{newNodesVersion(-settle, cluster.Nodes)},
	}
	if file == nil {
		return w, nil
	}
	if err := verbs.Check(file); err != nil {
		return nil, err
	}
	t := newTimeline(w, file, seed)
	t.until = -1
	for i := range file.Statements {
		s := &file.Statements[i]
		if s.Verb == "until" {
			d, err := scenario.ParseDuration(s.Args[0])
			switch {
			case err != nil:
				return nil, file.Errorf(s, "%w", err)
			case t.until >= 0 || i < len(file.Statements)-1:
				return nil, file.Errorf(s, "it must be the last statement")
			case d < s.At || d > maxDuration:
				return nil, file.Errorf(s, "%s: want %s to %s", d, s.At, maxDuration)
			}
			t.until = d
			continue
		}
		t.at(s.At, func() {
			t.event(s.Line, "%s", statementText(s))
			if err := t.execute(s); err != nil {
				t.err = file.Errorf(s, "%w", err)
			}
		})
	}
	if err := t.run(); err != nil {
		return nil, err
	}
	if w.end = t.until; t.until < 0 {
		w.end = min(t.last+afterLast, maxDuration)
	}
	return w, nil
}

// startOf returns the time of the beginning by the clock of policies: later than any Pod became ready, the same for the same cluster.
func startOf(c *model.Snapshot) time.Time {
	last := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, p := range c.Pods {
		last = max(last, p.ReadySince)
	}
	return time.UnixMilli(last).Truncate(time.Hour).Add(2 * time.Hour)
}

// statementText returns a statement as it is written, without options of which the default applies.
func statementText(s *scenario.Statement) string {
	words := append([]string{s.Verb}, s.Args...)
	for _, o := range s.Options {
		words = append(words, o.Key+"="+o.Value)
	}
	return strings.Join(words, " ")
}

// at schedules a step.
func (t *timeline) at(when time.Duration, do func()) {
	t.steps++
	heap.Push(&t.queue, step{when, t.steps, do})
}

// after schedules a step after a duration.
func (t *timeline) after(d time.Duration, do func()) { t.at(t.now+d, do) }

// run executes the steps.
func (t *timeline) run() error {
	for len(t.queue) > 0 && t.err == nil {
		next := t.queue[0].at
		if t.until >= 0 && next > t.until || next > maxDuration {
			break
		}
		if next != t.now {
			t.commit()
			t.now = next
		}
		if t.steps > maxSteps {
			return fmt.Errorf("%s: more than %d steps, at %s", t.file.Name, maxSteps, t.now)
		}
		heap.Pop(&t.queue).(step).do()
		t.last = t.now
	}
	t.commit()
	return t.err
}

// event adds an event to the result.
func (t *timeline) event(line int, format string, args ...any) {
	if len(t.world.events) < maxEvents {
		t.world.events = append(t.world.events, Event{t.now.Seconds(), fmt.Sprintf(format, args...), line})
	}
}

// commit ends the present time: what has changed becomes a version.
func (t *timeline) commit() {
	for _, name := range slices.SortedFunc(maps.Keys(t.touched), model.Name.Compare) {
		v := version{at: t.now, slices: slices.Clone(t.cluster.Slices[name])}
		for i, s := range v.slices {
			if changed := t.slices[s.Name]; changed != nil {
				v.slices[i] = changed
			}
		}
		t.world.services[name] = append(t.world.versionsOf(name), v)
	}
	if t.nodesChanged {
		nodes := make(map[string]*model.Node, len(t.cluster.Nodes))
		for name, n := range t.nodes {
			nodes[name] = n.node
		}
		t.world.nodes = append(t.world.nodes, newNodesVersion(t.now, nodes))
	}
	t.nodesChanged = false
	clear(t.touched)
	clear(t.own)
}
