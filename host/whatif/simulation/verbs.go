package simulation

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// verb is a verb whose statements are events.
func verb(usage string, do func(*timeline, *scenario.Statement) error) scenario.Verb[*timeline] {
	return scenario.Verb[*timeline]{Usage: usage, Do: func(t *timeline, s *scenario.Statement) error {
		t.last = t.clock.Now()
		t.event(s.Line, "%s", statementText(s))
		return do(t, s)
	}}
}

// onService is a verb that changes the Service of its first argument.
func onService(usage string, do func(*timeline, model.Name, *scenario.Statement) error) scenario.Verb[*timeline] {
	return verb(usage, func(t *timeline, s *scenario.Statement) error {
		service, err := t.service(s.Args[0])
		if err != nil {
			return err
		}
		return do(t, service, s)
	})
}

// onPods is a verb that changes Pods of a Service.
func onPods(usage string, do func(*timeline, []*pod, *scenario.Statement) error) scenario.Verb[*timeline] {
	return onService(usage, func(t *timeline, service model.Name, s *scenario.Statement) error {
		pods, err := t.choose(service, s.Args[1])
		if err != nil {
			return err
		}
		return do(t, pods, s)
	})
}

// respond sets how Pods respond to new connections.
func (t *timeline) respond(pods []*pod, s *scenario.Statement) error {
	for _, p := range pods {
		if p.answer = (answer{kind: scenario.Responses[s.Verb]}); s.Verb == "slow" {
			p.answer.delay = s.Duration("delay", defaultDelay)
		}
		t.update(p)
	}
	return nil
}

// service returns a Service with endpoints by its name.
func (t *timeline) service(text string) (model.Name, error) {
	namespace, name, _ := strings.Cut(text, "/")
	full := model.Name{Namespace: namespace, Name: name}
	if t.cluster.Services[full] == nil {
		var names []string
		for n := range t.cluster.Services {
			names = append(names, n.String())
		}
		slices.Sort(names)
		return full, fmt.Errorf("no Service %q%s", text, spelling.DidYouMean(text, names))
	}
	if len(t.services[full]) == 0 {
		return full, fmt.Errorf("Service %s has no endpoints", full)
	}
	return full, nil
}

// amount parses a number or a percentage of all, which is rounded up.
func amount(text string, all int) (int, error) {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || percent && n > 100 {
		return 0, fmt.Errorf("%q: want a number or a percentage, for example 3 or 25%%", text)
	}
	if percent {
		return (n*all + 99) / 100, nil
	}
	return n, nil
}

// choose returns Pods of a Service: one by address or name, or some by percentage.
func (t *timeline) choose(service model.Name, text string) ([]*pod, error) {
	pods := t.placed(service)
	if strings.HasSuffix(text, "%") {
		n, err := amount(text, len(pods))
		if err != nil {
			return nil, err
		}
		return t.some(pods, n), nil
	}
	var names []string
	for _, p := range pods {
		if p.name.Name == text || slices.ContainsFunc(p.addrs, func(a netip.Addr) bool { return a.String() == text }) {
			return []*pod{p}, nil
		}
		names = append(names, p.name.Name)
	}
	return nil, fmt.Errorf("Service %s has no endpoint %q%s; want the name or the IP of a Pod, or a percentage, for example 20%%", service, text, spelling.DidYouMean(text, names))
}

// some returns n random Pods in their order.
func (t *timeline) some(pods []*pod, n int) (out []*pod) {
	chosen := t.random.Perm(len(pods))[:min(n, len(pods))]
	slices.Sort(chosen)
	for _, i := range chosen {
		out = append(out, pods[i])
	}
	return out
}

func (t *timeline) drain(service model.Name, s *scenario.Statement) error {
	pods := t.placed(service)
	if text, ok := s.Option("pods"); ok {
		n, err := amount(text, len(pods))
		if err != nil {
			return fmt.Errorf("pods=: %w", err)
		}
		pods = t.some(pods, n)
	}
	for _, p := range pods {
		t.terminate(p, s.Duration("grace", defaultGrace))
		if _, ok := s.Option("startup"); ok {
			t.create(service, p, s.Duration("startup", 0), nil)
		}
	}
	return nil
}

// scale creates Pods, or deletes those of the Nodes with the most Pods of the Service, the last ones first.
func (t *timeline) scale(service model.Name, s *scenario.Statement) error {
	n, err := strconv.Atoi(s.Args[1])
	if err != nil || n < 0 || n > maxNewPods {
		return fmt.Errorf("%q: want a number of Pods, at most %d", s.Args[1], maxNewPods)
	}
	pods := t.placed(service)
	like := t.services[service][0]
	for range n - len(pods) {
		t.create(service, like, s.Duration("startup", defaultStartup), nil)
	}
	for ; len(pods) > n; pods = t.placed(service) {
		on := map[*nodeState]int{}
		victim := pods[0]
		for _, p := range pods {
			on[p.node]++
		}
		for _, p := range pods {
			if on[p.node] >= on[victim.node] {
				victim = p
			}
		}
		t.terminate(victim, s.Duration("grace", defaultGrace))
	}
	return nil
}

// flap makes Pods ready and unready in turns.
func (t *timeline) flap(pods []*pod, s *scenario.Statement) error {
	half := s.Duration("period", defaultFlap) / 2
	if half < time.Millisecond {
		return fmt.Errorf("period=%s: want at least 2ms", 2*half)
	}
	if _, ok := s.Option("for"); !ok && t.until < 0 {
		return fmt.Errorf("without for= it never ends: add `until DURATION` as the last statement")
	}
	end := t.clock.Now() + s.Duration("for", maxDuration)
	for _, p := range pods {
		var turn func()
		turn = func() {
			p.down = !p.down && t.clock.Now() < end
			t.update(p)
			if t.clock.Now() < end && p.phase != gone {
				t.after(half, turn)
			}
		}
		turn()
	}
	return nil
}

// rollout replaces all Pods as the Deployment controller does: at most maxSurge more than there are, rounded up, and
// maxUnavailable of them not ready, rounded down. Pods that terminate do not count.
func (t *timeline) rollout(service model.Name, s *scenario.Statement) error {
	old := t.placed(service)
	n := len(old)
	limit := func(key string, up bool) (int, error) {
		text, ok := s.Option(key)
		if !ok {
			text = "25%"
		}
		count, err := amount(text, n)
		if number, percent := strings.CutSuffix(text, "%"); err == nil && percent && !up {
			share, _ := strconv.Atoi(number)
			count = int(math.Floor(float64(share*n) / 100))
		}
		if err != nil {
			err = fmt.Errorf("%s=: %w", key, err)
		}
		return count, err
	}
	surge, err := limit("maxSurge", true)
	if err != nil {
		return err
	}
	unavailable, err := limit("maxUnavailable", false)
	if err != nil {
		return err
	}
	if surge+unavailable == 0 {
		unavailable = 1
	}
	var fresh []*pod
	var reconcile func()
	reconcile = func() {
		ready := 0
		for _, p := range slices.Concat(old, fresh) {
			if r, _, _ := p.conditions(); r && p.phase == running {
				ready++
			}
		}
		for len(old) > 0 {
			p := old[0]
			if r, _, _ := p.conditions(); r {
				if ready-1 < n-unavailable {
					break
				}
				ready--
			}
			old = old[1:]
			t.terminate(p, s.Duration("grace", defaultGrace))
		}
		for len(fresh) < n && len(old)+len(fresh) < n+surge {
			fresh = append(fresh, t.create(service, t.services[service][0], s.Duration("startup", defaultStartup), func() { reconcile() }))
		}
		if len(old) == 0 && ready >= n {
			t.event(0, "rollout %s: Pods replaced: %d", service, n)
		}
	}
	reconcile()
	return nil
}

// changeNodes disconnects or connects Nodes.
func (t *timeline) changeNodes(s *scenario.Statement) error {
	var nodes []*nodeState
	switch name := s.Args[0]; {
	case s.Verb == "zone":
		if nodes = t.byZone[name]; len(nodes) == 0 || name == "" {
			return fmt.Errorf("no Node is in zone %q%s", name, spelling.DidYouMean(name, sortedKeys(t.byZone)))
		}
	case strings.HasSuffix(name, "%"):
		var candidates []*nodeState
		for _, name := range sortedKeys(t.nodes) {
			if n := t.nodes[name]; n.lost == (s.Args[1] == "back") {
				candidates = append(candidates, n)
			}
		}
		n, err := amount(name, len(t.nodes))
		if err != nil {
			return err
		}
		t.random.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
		nodes = candidates[:min(n, len(candidates))]
	default:
		n := t.nodes[name]
		if n == nil {
			return fmt.Errorf("no Node %q%s", name, spelling.DidYouMean(name, sortedKeys(t.nodes)))
		}
		nodes = []*nodeState{n}
	}
	if s.Args[1] == "back" {
		t.back(nodes)
		return nil
	}
	t.lose(nodes, s.Duration("detect", defaultDetect), s.Duration("evict", defaultEvict), s.Duration("startup", defaultStartup))
	return nil
}

// lose disconnects Nodes: their Pods neither connect nor answer. After detect they are not ready, and neither are their Pods;
// after evict these are replaced.
func (t *timeline) lose(nodes []*nodeState, detect, evict, startup time.Duration) {
	var lost []*nodeState
	var times []int
	for _, n := range nodes {
		if !n.lost {
			n.lost = true
			n.times++
			lost, times = append(lost, n), append(times, n.times)
			t.setFate(n)
		}
	}
	still := func() (out []*nodeState) {
		for i, n := range lost {
			if n.lost && n.times == times[i] {
				out = append(out, n)
			}
		}
		return out
	}
	t.after(detect, func() {
		if nodes := still(); len(nodes) > 0 {
			t.event(0, "Nodes not ready: %d", len(nodes))
			for _, n := range nodes {
				t.setDetected(n, true)
			}
		}
	})
	t.after(detect+evict, func() {
		count := 0
		for _, n := range still() {
			for _, p := range slices.Clone(n.pods) {
				if (p.phase == running || p.phase == starting) && !t.isDaemon(p) {
					count++
					p.phase, p.evicted = terminating, true
					t.update(p)
					t.create(p.services[0], p, startup, nil)
				}
			}
		}
		if count > 0 {
			t.event(0, "Pods evicted and replaced: %d", count)
		}
	})
}

// isDaemon reports whether a Pod belongs to a DaemonSet, which is not evicted: it serves traffic of its own Node only.
func (t *timeline) isDaemon(p *pod) bool {
	svc := t.cluster.Services[p.services[0]]
	return svc != nil && svc.InternalLocal
}

// back connects Nodes again. Their Pods are ready at once, except those that have been replaced.
func (t *timeline) back(nodes []*nodeState) {
	for _, n := range nodes {
		if n.lost {
			n.lost = false
			t.setFate(n)
			t.setDetected(n, false)
		}
	}
}

// setFate records that a Node is lost or back, and its answers.
func (t *timeline) setFate(n *nodeState) {
	name := n.node.Name
	t.world.fates[name] = append(t.world.fates[name], t.clock.Now())
	for _, p := range n.pods {
		if p.evicted {
			p.phase = gone
		}
		t.update(p)
	}
}

// setDetected makes a Node and its Pods unready, or ready again.
func (t *timeline) setDetected(n *nodeState, detected bool) {
	n.detected, t.nodesChanged = detected, true
	c := *n.node
	c.Ready = !detected && t.cluster.Nodes[c.Name].Ready
	n.node = &c
	for _, p := range n.pods {
		t.update(p)
	}
}
