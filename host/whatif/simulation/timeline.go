package simulation

import (
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

var verbs = scenario.NewVerbs(
	verb("zone NAME lost|back [detect=DURATION] [evict=DURATION] [startup=DURATION]", (*timeline).changeNodes),
	verb("node NAME lost|back [detect=DURATION] [evict=DURATION] [startup=DURATION]", (*timeline).changeNodes),
	onService("drain SERVICE [pods=N] [grace=DURATION] [startup=DURATION]", (*timeline).drain),
	onService("scale SERVICE N [startup=DURATION] [grace=DURATION]", (*timeline).scale),
	onService("rollout SERVICE [maxSurge=N] [maxUnavailable=N] [startup=DURATION] [grace=DURATION]", (*timeline).rollout),
	verb(weightVerb+" ROUTE BACKEND WEIGHT", (*timeline).weight),
	onPods("flap SERVICE ENDPOINT [period=DURATION] [for=DURATION]", (*timeline).flap),
	onPods("silent SERVICE ENDPOINT", (*timeline).respond),
	onPods("refuse SERVICE ENDPOINT", (*timeline).respond),
	onPods("slow SERVICE ENDPOINT [delay=DURATION]", (*timeline).respond),
	onPods("answer SERVICE ENDPOINT", (*timeline).respond),
	scenario.Verb[*timeline]{Usage: "until DURATION", Do: func(*timeline, *scenario.Statement) error { return nil }}, // see setEnd
)

// CheckTimeline returns an error if a statement has another form than its verb allows.
func CheckTimeline(f *scenario.File) error { return verbs.Check(f) }

// Defaults of the options. Those of Nodes are the defaults of kube-controller-manager (--node-monitor-grace-period) and of the
// admission plugin DefaultTolerationSeconds; those of Pods are the default terminationGracePeriodSeconds, and a guess at the time
// to become ready.
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
	maxDuration = scenario.MaxDuration
	maxSteps    = 200_000 // that follow from statements
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

	clock        scenario.Clock
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

// newWorld returns the world of an input.
func newWorld(in *Input) (*world, error) {
	cluster, file := in.Cluster, in.Timeline
	start := Earliest(cluster)
	switch {
	case !in.Start.IsZero() && in.Start.Before(start):
		return nil, fmt.Errorf("simulation: it cannot begin at %s, only from %s on: Pods have become ready shortly before", in.Start.Format(time.RFC3339), start.Format(time.RFC3339))
	case !in.Start.IsZero():
		start = in.Start
	case file != nil:
		start = file.Begin(start)
	}
	w := &world{
		start:   start,
		cluster: cluster, services: map[model.Name][]version{}, routes: map[model.ObjectName][]routeVersion{}, fates: map[string][]time.Duration{}, answers: map[netip.Addr][]answer{},
		pods: cluster.Pods, zones: zonesOf(cluster), events: []Event{}, nodes: []nodesVersion{newNodesVersion(-settle, cluster.Nodes)},
	}
	if file == nil {
		return w, nil
	}
	if err := verbs.Check(file); err != nil {
		return nil, err
	}
	t := newTimeline(w, file, in.Seed)
	if err := t.setEnd(); err != nil {
		return nil, err
	}
	if err := verbs.Run(file, &t.clock, t); err != nil {
		return nil, err
	}
	end := t.until
	if end < 0 {
		end = maxDuration
	}
	if err := t.clock.Finish(end); err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name, err)
	}
	if w.end = t.until; t.until < 0 {
		w.end = min(t.last+afterLast, maxDuration)
	}
	return w, nil
}

// setEnd sets until.
func (t *timeline) setEnd() error {
	t.until = -1
	for i := range t.file.Statements {
		switch s := &t.file.Statements[i]; {
		case s.At > maxDuration:
			return t.file.Errorf(s, "at %s: more than %s", s.At, maxDuration)
		case s.Verb != "until":
		case i < len(t.file.Statements)-1:
			return t.file.Errorf(s, "it must be the last statement")
		default:
			if t.until, _ = scenario.ParseDuration(s.Args[0]); t.until < s.At {
				return t.file.Errorf(s, "%s: want %s to %s", t.until, s.At, maxDuration)
			}
		}
	}
	return nil
}

// Earliest returns the time of the earliest beginning by the clock of policies: later than any Pod became ready, the same for the
// same cluster.
func Earliest(c *model.Snapshot) time.Time {
	last := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, p := range c.Pods {
		last = max(last, p.ReadySince)
	}
	return time.UnixMilli(last).UTC().Truncate(time.Hour).Add(2 * time.Hour)
}

// statementText returns a statement as it is written, without options of which the default applies.
func statementText(s *scenario.Statement) string {
	words := append([]string{s.Verb}, s.Args...)
	for _, o := range s.Options {
		words = append(words, o.Key+"="+o.Value)
	}
	return strings.Join(words, " ")
}

// after schedules what follows from a statement.
func (t *timeline) after(d time.Duration, do func()) {
	if t.steps++; t.steps > maxSteps && t.err == nil {
		t.err = fmt.Errorf("more than %d steps, at %s", maxSteps, t.clock.Now())
	}
	t.clock.After(d, func() error {
		t.last = t.clock.Now()
		do()
		return t.err
	})
}

// event adds an event to the result.
func (t *timeline) event(line int, format string, args ...any) {
	if len(t.world.events) < maxEvents {
		t.world.events = append(t.world.events, Event{t.clock.Now().Seconds(), fmt.Sprintf(format, args...), line})
	}
}

// commit ends the present time: what has changed becomes a version.
func (t *timeline) commit() error {
	for _, name := range slices.SortedFunc(maps.Keys(t.touched), model.Name.Compare) {
		v := version{at: t.clock.Now(), slices: slices.Clone(t.cluster.Slices[name])}
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
		t.world.nodes = append(t.world.nodes, newNodesVersion(t.clock.Now(), nodes))
	}
	t.nodesChanged = false
	clear(t.touched)
	clear(t.own)
	return t.err
}
