package wasm

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

const (
	// maxFailingPorts bounds the Service ports of a plugin whose failures are known, and the groups of them.
	maxFailingPorts = 1024
	// severalFail is how many different Services, namespaces or settings fail, none having succeeded meanwhile, before their
	// group is suspended.
	severalFail = 3
	// recovery is for how long after the suspension of a group only those are asked that have not failed.
	recovery = 2 * time.Second
	// retryEach is the time between calls of Service ports that fail, on an average: the more there are, the longer each one
	// waits.
	retryEach = 250 * time.Millisecond
)

// portID identifies a Service port with settings: a hash of those of the configuration, or ownSettings.
type portID struct {
	namespace, service, port string
	settings                 uint64
}

const ownSettings = 0

// level says what the Service ports of a group have in common.
type level uint8

const (
	levelTogether level = iota // namespace and settings
	levelNamespace
	levelSettings
	levelModule
	levels
)

// groupID identifies a group of Service ports. With isolation by namespace, all of its groups have its name.
type groupID struct {
	level     level
	namespace string
	settings  uint64
}

// culprit is a Service port that has failed.
type culprit struct {
	portID
	err error
}

// group suspends Service ports when several of their Services, namespaces or settings have failed one after the other.
type group struct {
	suspension
	failed []culprit // different ones since the last success, at most severalFail
}

// breakers are the circuit breakers of a plugin: those of Service ports and groups with recent failures.
type breakers struct {
	ports     map[portID]*circuitBreaker
	groups    map[groupID]*group
	forgotten uint64
}

// scope is what a request belongs to: a Service port and its groups.
type scope struct {
	port   portID
	groups [levels]groupID
	n      int  // of groups
	known  bool // the plugin has answered for it: only its own failures suspend it
}

// scopeOf returns the scope of a request. Settings that Services of a namespace have set are a group for itself, whatever they
// are: their texts are for tenants to choose.
func (p *Plugin) scopeOf(key instanceKey, req *abi.Request) (s scope) {
	s.port, s.known = portID{req.Namespace, req.Service, req.Port, ownSettings}, req.Settings.Answered
	if req.Settings.Own {
		s.groups[0], s.n = groupID{levelTogether, req.Namespace, ownSettings}, 1
		return s
	}
	hash := maphash.String(p.host.seed, req.Settings.Text) | 1
	s.port.settings, s.n = hash, int(levels)
	s.groups = [levels]groupID{{levelTogether, req.Namespace, hash}, {levelNamespace, req.Namespace, 0}, {levelSettings, key.namespace, hash}, {levelModule, key.namespace, 0}}
	return s
}

// idle reports whether nothing has failed.
func (b *breakers) idle() bool { return len(b.ports)+len(b.groups) == 0 }

// suspended returns why a call is not to be made at now, nil: it is.
func (b *breakers) suspended(s *scope, now int64) *DecideError {
	var out *DecideError
	port, more := b.ports[s.port], time.Duration(0)
	switch {
	case port == nil && s.known:
		return nil
	case port != nil:
		more = recovery
		if wait := port.remaining(now, 0); wait > 0 {
			out = &DecideError{Failures: port.failures, Suspended: true, RetryAfter: wait, Err: port.lastErr}
		}
	}
	for _, id := range s.groups[:s.n] {
		g := b.groups[id]
		if g == nil {
			continue
		}
		if wait := g.remaining(now, more); wait > 0 && (out == nil || out.RetryAfter < wait) {
			out = &DecideError{Suspended: true, RetryAfter: wait, Err: g.error(id, s.port.namespace)}
		}
	}
	return out
}

// failure records a failure, and returns how long to wait before the next call, and the groups that it suspends.
func (b *breakers) failure(s *scope, now int64, allowed int, err error) (retry time.Duration, tripped []groupID) {
	port, fresh := b.port(s.port, now)
	retry = port.failure(now, allowed, time.Duration(len(b.ports))*retryEach, err)
	if !fresh { // the failures of one Service do not add up to those of several
		return retry, nil
	}
	for _, id := range s.groups[:s.n] {
		g := b.group(id)
		g.failedAt = now
		g.add(id.level, culprit{s.port.clone(), err})
		if len(g.failed) == severalFail {
			retry = max(retry, g.trip(now, 0)+recovery)
			tripped = append(tripped, id)
		}
	}
	return retry, tripped
}

// success records a success. A group in which one succeeds is not suspended any more.
func (b *breakers) success(s *scope) {
	if c := b.ports[s.port]; c != nil {
		if c.success(); c.score == 0 {
			delete(b.ports, s.port)
		}
	}
	for _, id := range s.groups[:s.n] {
		delete(b.groups, id)
	}
}

// port returns the circuit breaker of a Service port, and whether no port of the Service had failed. Those without calls for a
// long time, which may no longer exist, are deleted when a new one is made.
func (b *breakers) port(id portID, now int64) (c *circuitBreaker, fresh bool) {
	if c = b.ports[id]; c != nil {
		return c, false
	}
	old := func(s *suspension) bool { return now-s.failedAt > 2*maxSuspension.Milliseconds() }
	fresh = true
	for other, c := range b.ports {
		if old(&c.suspension) {
			delete(b.ports, other)
		} else if other.namespace == id.namespace && other.service == id.service && other.settings == id.settings {
			fresh = false
		}
	}
	for id, g := range b.groups {
		if old(&g.suspension) {
			delete(b.groups, id)
		}
	}
	if len(b.ports) >= maxFailingPorts {
		b.forget()
	}
	if b.ports == nil {
		b.ports = map[portID]*circuitBreaker{}
	}
	c = &circuitBreaker{}
	b.ports[id.clone()] = c
	return c, fresh
}

// forget forgets the oldest failure of the namespace that has most, so that no namespace takes the room of others.
func (b *breakers) forget() {
	count := map[string]int{}
	for id := range b.ports {
		count[id.namespace]++
	}
	var worst portID
	for id, c := range b.ports {
		if n, most := count[id.namespace], count[worst.namespace]; n > most || n == most && (worst.service == "" || c.failedAt < b.ports[worst].failedAt) {
			worst = id
		}
	}
	delete(b.ports, worst)
	b.forgotten++
}

// group returns a group. If there are too many, the one that failed first is forgotten.
func (b *breakers) group(id groupID) *group {
	g := b.groups[id]
	if g != nil {
		return g
	}
	if len(b.groups) >= maxFailingPorts {
		var first groupID
		for id, g := range b.groups {
			if f := b.groups[first]; f == nil || g.failedAt < f.failedAt {
				first = id
			}
		}
		delete(b.groups, first)
		b.forgotten++
	}
	if b.groups == nil {
		b.groups = map[groupID]*group{}
	}
	g = &group{}
	id.namespace = strings.Clone(id.namespace)
	b.groups[id] = g
	return g
}

// clone returns an ID that is no part of a large string.
func (id portID) clone() portID {
	return portID{strings.Clone(id.namespace), strings.Clone(id.service), strings.Clone(id.port), id.settings}
}

func (id *portID) String() string { return fmt.Sprintf("%s/%s:%s", id.namespace, id.service, id.port) }

// add adds a culprit if it is a different one on a level.
func (g *group) add(l level, c culprit) {
	same := func(o culprit) bool {
		switch l {
		case levelTogether:
			return o.service == c.service
		case levelNamespace:
			return o.settings == c.settings
		case levelSettings:
			return o.namespace == c.namespace
		}
		return o.settings == c.settings || o.namespace == c.namespace // no tenant alone suspends those of others
	}
	if len(g.failed) < severalFail && !slices.ContainsFunc(g.failed, same) {
		g.failed = append(g.failed, c)
	}
}

// names lists the culprits, for the log.
func (g *group) names() string {
	var out []string
	for _, c := range g.failed {
		out = append(out, c.String())
	}
	return strings.Join(out, ", ")
}

// error returns why a group is suspended, for a Service of a namespace: it names no Service of another one, and nothing that a
// plugin has said about it.
func (g *group) error(id groupID, namespace string) error {
	what := [levels]string{"Services of this namespace with these settings", "settings in this namespace", "namespaces with these settings", "namespaces and settings"}[id.level]
	for _, c := range slices.Backward(g.failed) {
		if c.namespace == namespace {
			return fmt.Errorf("several %s have failed, one after the other, of which Service %s: %w", what, &c.portID, c.err)
		}
	}
	return fmt.Errorf("several %s have failed, one after the other: %w", what, errOthers)
}

var errOthers = errors.New("Services of other namespaces, which sluice has logged")

// Suspensions counts what is suspended, of which calls fail without reaching a guest.
type Suspensions struct {
	Ports      int // of Services
	Namespaces int // all their Services, or those with the same settings
	Settings   int
	Modules    int    // 1: all Services; also if the plugin is no function of its request
	Forgotten  uint64 // failures for which there was no room, so far
}

// suspensions returns what is suspended at now.
func (b *breakers) suspensions(now int64) Suspensions {
	out := Suspensions{Forgotten: b.forgotten}
	for _, c := range b.ports {
		out.Ports += int(count(c.remaining(now, 0) > 0))
	}
	byLevel := [levels]*int{&out.Namespaces, &out.Namespaces, &out.Settings, &out.Modules}
	for id, g := range b.groups {
		*byLevel[id.level] += int(count(g.remaining(now, 0) > 0))
	}
	return out
}
