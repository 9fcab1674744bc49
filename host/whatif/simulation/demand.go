package simulation

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Demand is how many new connections per second each Node opens to each Service port. Rules of a Node precede those of its zone,
// these those of each Node, and these those of the cluster; among them the one with the most specific Service applies. A Service
// port without a rule has no demand.
type Demand struct {
	Text string // describes it
	// PerNode is the rate of each Node to each Service port if there are no rules; with ByCPU, the mean: that of a Node is in
	// proportion to its allocatable CPU.
	PerNode float64
	ByCPU   bool

	rules map[scope]map[target]float64
}

// scope is whom a rule is about: a Node, all Nodes of a zone or of the cluster together, or each Node.
type scope struct{ kind, name string }

// eachNode is the kind of a scope with each Node, alone.
const eachNode = "each"

// target is which Service ports a rule is about; empty fields match everything.
type target struct{ namespace, service, port string }

// Limits of a file with demand.
const (
	MaxDemandSize  = 64 << 20 // bytes
	maxDemandRules = 1_000_000
	maxRate        = 1e9 // connections per second
)

// NodesDemand returns the demand of Nodes that all do the same: rate is that of a Node to each Service port.
func NodesDemand(rate float64) *Demand {
	return &Demand{Text: fmt.Sprintf("%g connections/s of each Node to each Service port", rate), PerNode: rate}
}

// CPUDemand returns the demand of Nodes in proportion to their allocatable CPU: rate is the mean of a Node to each Service port.
func CPUDemand(rate float64) *Demand {
	return &Demand{Text: fmt.Sprintf("%g connections/s of each Node to each Service port, in proportion to its allocatable CPU", rate), PerNode: rate, ByCPU: true}
}

// ParseDemand reads a file with rules, one per line:
//
//	cluster SERVICE RATE        of all Nodes together
//	each SERVICE RATE           of each Node
//	zone NAME SERVICE RATE      of all Nodes of a zone together
//	node NAME SERVICE RATE      of a Node
//
// SERVICE is NAMESPACE/NAME:PORT, NAMESPACE/NAME, NAMESPACE/* or *; PORT is the name of the port, or its number. RATE is a number
// of new connections per second to each Service port, or a number that was counted and for how long: 120000/1h. # begins a
// comment. Errors begin with name and line.
func ParseDemand(name string, text []byte) (*Demand, error) {
	if len(text) > MaxDemandSize {
		return nil, fmt.Errorf("%s: %d bytes, at most %d are allowed", name, len(text), MaxDemandSize)
	}
	d := &Demand{Text: name, rules: map[scope]map[target]float64{}}
	n, rules := 0, 0
	for line := range bytes.Lines(text) {
		n++
		line, _, _ := strings.Cut(string(line), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if rules++; rules > maxDemandRules {
			return nil, fmt.Errorf("%s:%d: more than %d rules", name, n, maxDemandRules)
		}
		if err := d.addRule(words); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	return d, nil
}

func (d *Demand) addRule(words []string) error {
	s := scope{kind: words[0]}
	switch rest := words[1:]; {
	case (s.kind == "zone" || s.kind == "node") && len(rest) == 3:
		s.name, words = rest[0], rest[1:]
	case (s.kind == "cluster" || s.kind == eachNode) && len(rest) == 2:
		words = rest
	default:
		return fmt.Errorf("want cluster SERVICE RATE, each SERVICE RATE, zone NAME SERVICE RATE, or node NAME SERVICE RATE")
	}
	t, err := parseTarget(words[0])
	if err != nil {
		return err
	}
	rate, err := parseRate(words[1])
	if err != nil {
		return err
	}
	if d.rules[s] == nil {
		d.rules[s] = map[target]float64{}
	}
	if _, twice := d.rules[s][t]; twice {
		return fmt.Errorf("%s has a rule for %s above", strings.TrimSpace(s.kind+" "+s.name), words[0])
	}
	d.rules[s][t] = rate
	return nil
}

func parseTarget(text string) (t target, err error) {
	if text == "*" {
		return t, nil
	}
	namespace, rest, ok := strings.Cut(text, "/")
	service, port, hasPort := strings.Cut(rest, ":")
	if !ok || namespace == "" || service == "" || hasPort && (port == "" || service == "*") {
		return t, fmt.Errorf("%q: want NAMESPACE/NAME:PORT, NAMESPACE/NAME, NAMESPACE/* or *", text)
	}
	if service == "*" {
		service = ""
	}
	return target{namespace, service, port}, nil
}

// parseRate parses a rate, or COUNT/DURATION.
func parseRate(text string) (float64, error) {
	number, duration, counted := strings.Cut(text, "/")
	rate, err := strconv.ParseFloat(number, 64)
	if err == nil && counted {
		var d time.Duration
		if d, err = time.ParseDuration(duration); err == nil && d > 0 {
			rate /= d.Seconds()
		} else if err == nil {
			err = strconv.ErrRange
		}
	}
	if err != nil || math.IsNaN(rate) || rate < 0 || rate > maxRate {
		return 0, fmt.Errorf("%q is not a rate: want connections per second, for example 2.5, or what was counted and for how long, for example 120000/1h", text)
	}
	return rate, nil
}

// demandOf is the demand with what it needs of the Nodes.
type demandOf struct {
	*Demand
	inZone  map[string]float64 // number of Nodes
	nodes   float64
	meanCPU float64 // millicores; 0: none is known
}

func newDemandOf(d *Demand, nodes map[string]*model.Node) demandOf {
	out := demandOf{Demand: d, inZone: map[string]float64{}, nodes: float64(len(nodes))}
	for _, n := range nodes {
		out.inZone[n.Zone]++
	}
	for _, z := range sortedKeys(nodes) {
		out.meanCPU += float64(nodes[z].MilliCPU) / out.nodes
	}
	return out
}

// own reports whether there are rules for a Node.
func (d *demandOf) own(node string) bool { return d.rules[scope{"node", node}] != nil }

// cpu returns the allocatable CPU of a Node if the demand depends on it.
func (d *demandOf) cpu(n *model.Node) int64 {
	if d.ByCPU {
		return n.MilliCPU
	}
	return 0
}

// rate returns the new connections per second that a Node opens to a Service port.
func (d *demandOf) rate(n *model.Node, port model.PortName, number uint16) float64 {
	if d.rules == nil {
		if d.ByCPU && d.meanCPU > 0 {
			return d.PerNode * float64(n.MilliCPU) / d.meanCPU
		}
		return d.PerNode
	}
	for _, s := range [...]struct {
		scope
		nodes float64
	}{{scope{"node", n.Name}, 1}, {scope{"zone", n.Zone}, d.inZone[n.Zone]}, {scope{kind: eachNode}, 1}, {scope{"cluster", ""}, d.nodes}} {
		if rules := d.rules[s.scope]; rules != nil {
			if rate, ok := find(rules, port, number); ok {
				return rate / s.nodes
			}
		}
	}
	return 0
}

func find(rules map[target]float64, p model.PortName, number uint16) (rate float64, ok bool) {
	ns, name := p.Service.Namespace, p.Service.Name
	if p.Port != "" {
		if rate, ok = rules[target{ns, name, p.Port}]; ok {
			return rate, ok
		}
	}
	for _, t := range [...]target{{ns, name, strconv.Itoa(int(number))}, {ns, name, ""}, {ns, "", ""}, {}} {
		if rate, ok = rules[t]; ok {
			return rate, ok
		}
	}
	return 0, false
}

// unknown returns what the rules name and the cluster does not have, sorted; they have no effect.
func (d *demandOf) unknown(c *model.Snapshot) (out []string) {
	names := map[string]bool{}
	for s, rules := range d.rules {
		if s.kind == "node" && c.Nodes[s.name] == nil || s.kind == "zone" && d.inZone[s.name] == 0 {
			names[s.kind+" "+s.name] = true
		}
		for t := range rules {
			if name := (model.Name{Namespace: t.namespace, Name: t.service}); t.service != "" && c.Services[name] == nil {
				names["Service "+name.String()] = true
			}
		}
	}
	return sortedKeys(names)
}
