package scenariotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Limits of a scenario of a plugin.
const (
	MaxChain       = 16 // plugins of the policy
	MaxNodes       = 1000
	MaxEndpoints   = 1000
	MaxConnections = 1_000_000 // of an endpoint, and new ones a second
	MaxCPU         = 100_000   // cores of a Node, and millicores that a Pod requests
	MaxValue       = 256       // bytes of a label or annotation
	MaxLoad        = 1_000_000_000
)

// Verbs are the verbs of scenarios of plugins.
var Verbs = scenario.NewVerbs(
	change("chain NAME…", (*runner).setChain),
	change("settings JSON [plugin=NAME]", (*runner).setSettings),
	change("policy [ignoreHints=true|false] [onFailure=LastGood|Default]", (*runner).setPolicy),
	change("node NAME… [zone=ZONE] [cpu=CORES] [ready=true|false] [label:KEY=VALUE]", each((*runner).setNode)),
	change("remove-node NAME…", each((*runner).removeNode)),
	change("service [NAME] [namespace=NAMESPACE] [port=NAME] [number=NUMBER] [protocol=TCP|UDP|SCTP] [family=IPv4|IPv6] [affinity=DURATION] "+
		"[internalTrafficPolicy=Cluster|Local] [externalTrafficPolicy=Cluster|Local] [label:KEY=VALUE] [annotation:KEY=VALUE] [namespaceLabel:KEY=VALUE]", (*runner).setService),
	change("endpoint NAME… [node=NODE] [zone=ZONE] [ready=true|false] [serving=true|false] [terminating=true|false] [zoneHints=ZONES] [nodeHints=NODES] "+
		"[cpu=MILLICORES] [label:KEY=VALUE] [annotation:KEY=VALUE] [load:KEY=NUMBER]", each((*runner).setEndpoint)),
	change("remove NAME…", each((*runner).removeEndpoint)),
	change("connections [NAME=NUMBER…]", (*runner).setConnections),
	change("traffic NUMBER", (*runner).setTraffic),
	change("answer NAME…", each((*runner).setResponse)),
	change("refuse NAME…", each((*runner).setResponse)),
	change("silent NAME…", each((*runner).setResponse)),
	scenario.Verb[*runner]{Usage: "decide [NAME…] [pool=cluster|local]", Do: (*runner).print},
	scenario.Verb[*runner]{Usage: "calls [pool=cluster|local]", Do: (*runner).print},
	scenario.Verb[*runner]{Usage: "restart", Do: (*runner).restart},
)

// change is a verb that changes the cluster.
func change(usage string, do func(*runner, *scenario.Statement) error) scenario.Verb[*runner] {
	return scenario.Verb[*runner]{Usage: usage, Do: func(r *runner, s *scenario.Statement) error {
		r.dirty = true
		return do(r, s)
	}}
}

// each executes a statement for each of its arguments.
func each(do func(r *runner, name string, s *scenario.Statement) error) func(*runner, *scenario.Statement) error {
	return func(r *runner, s *scenario.Statement) error {
		for _, name := range s.Args {
			if err := do(r, name, s); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *runner) setPolicy(s *scenario.Statement) error {
	for _, o := range s.Options {
		switch o.Key {
		case "ignoreHints":
			r.cluster.IgnoreHints = o.Value == "true"
		case "onFailure":
			r.cluster.UseDefault = o.Value == "Default"
		}
	}
	return nil
}

func (r *runner) removeNode(name string, _ *scenario.Statement) error {
	c := &r.cluster
	if c.node(name) == nil || c.Nodes[0].Name == name {
		return fmt.Errorf("%q: want a Node of this scenario, but not the first one, which is the one that decides", name)
	}
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n Node) bool { return n.Name == name })
	return nil
}

func (r *runner) removeEndpoint(name string, _ *scenario.Statement) error {
	n := len(r.cluster.Endpoints)
	r.cluster.Endpoints = slices.DeleteFunc(r.cluster.Endpoints, func(e Endpoint) bool { return e.Name == name })
	if len(r.cluster.Endpoints) == n {
		return fmt.Errorf("no endpoint %q", name)
	}
	return nil
}

func (r *runner) setResponse(name string, s *scenario.Statement) error {
	e := r.cluster.endpoint(name)
	if e == nil {
		return fmt.Errorf("no endpoint %q", name)
	}
	e.Responds = scenario.Responses[s.Verb]
	return nil
}

// setChain sets the plugins of the policy. Those that were in the chain before keep their settings.
func (r *runner) setChain(s *scenario.Statement) error {
	c, names := &r.cluster, s.Args
	if len(names) > MaxChain {
		return fmt.Errorf("more than %d plugins", MaxChain)
	}
	if c.Settings != "" {
		return errors.New("the settings above are of no plugin of this chain: write `settings JSON plugin=NAME` below it")
	}
	var chain []Plugin
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		if slices.ContainsFunc(chain, func(p Plugin) bool { return p.Name == name }) {
			return fmt.Errorf("plugin %q is named twice", name)
		}
		p := Plugin{Name: name}
		if i := slices.IndexFunc(c.Chain, func(p Plugin) bool { return p.Name == name }); i >= 0 {
			p = c.Chain[i]
		}
		chain = append(chain, p)
	}
	c.Chain = chain
	return nil
}

// setSettings sets the settings of a plugin of the chain, or of the only plugin, which has no name.
func (r *runner) setSettings(s *scenario.Statement) error {
	c, text := &r.cluster, s.Args[0]
	name, _ := s.Option("plugin")
	into := &c.Settings
	if i := slices.IndexFunc(c.Chain, func(p Plugin) bool { return p.Name == name }); i >= 0 {
		chain := slices.Clone(c.Chain) // engines compare with the one before
		c.Chain, into = chain, &chain[i].Settings
	} else if name != "" || len(c.Chain) > 0 {
		return fmt.Errorf("no plugin %q in the chain: want plugin=NAME with a name in a line `chain NAME…` above", name)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil || compact.Bytes()[0] != '{' {
		return fmt.Errorf("want a JSON object, for example `{\"factor\": 4}`, got %.60q", text)
	}
	*into = compact.String()
	return nil
}

func (r *runner) setNode(name string, s *scenario.Statement) error {
	c := &r.cluster
	n := c.node(name)
	if n == nil {
		if err := checkName(name); err != nil {
			return err
		}
		if len(c.Nodes) == MaxNodes {
			return fmt.Errorf("more than %d Nodes", MaxNodes)
		}
		c.Nodes = append(c.Nodes, Node{Name: name, Ready: true, MilliCPU: 4000})
		n = &c.Nodes[len(c.Nodes)-1]
	}
	for _, o := range s.Options {
		switch kind, key, _ := strings.Cut(o.Key, ":"); kind {
		case "zone":
			n.Zone = o.Value
		case "cpu":
			cores, err := number(o, MaxCPU)
			if err != nil {
				return err
			}
			n.MilliCPU = cores * 1000
		case "ready":
			n.Ready = o.Value == "true"
		case "label":
			if err := setValue(&n.Labels, nil, kind, key, o.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) setService(s *scenario.Statement) error {
	svc := &r.cluster.Service
	before := *svc
	if len(s.Args) > 0 {
		if err := checkName(s.Args[0]); err != nil {
			return err
		}
		svc.Name = s.Args[0]
	}
	for _, o := range s.Options {
		kind, key, _ := strings.Cut(o.Key, ":")
		var err error
		switch kind {
		case "namespace":
			err = checkName(o.Value)
			svc.Namespace = o.Value
		case "port":
			svc.Port = o.Value
		case "number":
			var n uint64
			n, err = number(o, math.MaxUint16)
			svc.Number = uint16(n)
		case "protocol":
			svc.Protocol = map[string]uint8{"TCP": 6, "UDP": 17, "SCTP": 132}[o.Value]
		case "family":
			svc.Family = map[string]uint8{"IPv4": 4, "IPv6": 6}[o.Value]
		case "affinity":
			svc.Affinity = s.Duration("affinity", 0)
		case "internalTrafficPolicy":
			svc.InternalLocal = o.Value == "Local"
		case "externalTrafficPolicy":
			svc.ExternalLocal = o.Value == "Local"
		case "namespaceLabel":
			err = setValue(&svc.NamespaceLabels, nil, kind, key, o.Value)
		default:
			err = setValue(&svc.Labels, &svc.Annotations, kind, key, o.Value)
		}
		if err != nil {
			return err
		}
	}
	same := before.Name == svc.Name && before.Namespace == svc.Namespace && before.Port == svc.Port && before.Number == svc.Number &&
		before.Protocol == svc.Protocol && before.Family == svc.Family
	if svc.Number == 0 || !same && (r.planned || len(r.cluster.Endpoints) > 0) {
		return fmt.Errorf("name, namespace, port, number (1 to 65535), protocol and family can be set before the first endpoint only")
	}
	return nil
}

func (r *runner) setEndpoint(name string, s *scenario.Statement) error {
	c := &r.cluster
	e := c.endpoint(name)
	if e == nil {
		if err := checkName(name); err != nil {
			return err
		}
		if len(c.Endpoints) == MaxEndpoints || r.addrs == math.MaxUint16 {
			return fmt.Errorf("more than %d endpoints, or %d in the course of the scenario", MaxEndpoints, math.MaxUint16)
		}
		c.Endpoints = append(c.Endpoints, Endpoint{Name: name, Addr: r.nextAddr(), Ready: true, Serving: true})
		e = &c.Endpoints[len(c.Endpoints)-1]
	}
	serving := false // set by this statement
	for _, o := range s.Options {
		kind, key, _ := strings.Cut(o.Key, ":")
		yes := o.Value == "true"
		switch kind {
		case "node":
			n := c.node(o.Value)
			if n == nil {
				return fmt.Errorf("no node %q: name it in a line `node` above", o.Value)
			}
			e.Node, e.Zone = n.Name, n.Zone
		case "zone":
			e.Zone = o.Value
		case "ready":
			if e.Ready = yes; !serving {
				e.Serving = yes || e.Terminating && e.Serving
			}
		case "serving":
			e.Serving, serving = yes, true
		case "terminating":
			if e.Terminating = yes; yes {
				e.Ready = false
			}
		case "zoneHints":
			e.ZoneHints = list(o.Value)
		case "nodeHints":
			e.NodeHints = list(o.Value)
		case "cpu":
			n, err := number(o, MaxCPU)
			if err != nil {
				return err
			}
			e.MilliCPU = int64(n)
		case "load":
			if err := setLoad(&e.Load, key, o.Value); err != nil {
				return err
			}
		default:
			if err := setValue(&e.Labels, &e.Annotations, kind, key, o.Value); err != nil {
				return err
			}
		}
	}
	if zone, ok := s.Option("zone"); ok {
		e.Zone = zone
	}
	return nil
}

// nextAddr returns an address that no endpoint has had.
func (r *runner) nextAddr() netip.AddrPort {
	r.addrs++
	if r.cluster.Service.Family == 6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 14: byte(r.addrs >> 8), 15: byte(r.addrs)}), 8080)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.addrs >> 8), byte(r.addrs)}), 8080)
}

func (r *runner) setConnections(s *scenario.Statement) error {
	c := &r.cluster
	for i := range c.Endpoints {
		c.Endpoints[i].Connections = 0
	}
	for _, o := range s.Options {
		e := c.endpoint(o.Key)
		if e == nil {
			return fmt.Errorf("no endpoint %q", o.Key)
		}
		n, err := number(o, MaxConnections)
		if err != nil {
			return err
		}
		e.Connections = uint32(n)
	}
	c.CountedAt = r.now()
	return nil
}

func (r *runner) setTraffic(s *scenario.Statement) error {
	n, err := number(scenario.Option{Key: "traffic", Value: s.Args[0]}, MaxConnections)
	if err != nil {
		return err
	}
	r.rate = float64(n)
	if !r.traffic { // the first reading is the base of the next one
		r.traffic = true
		r.engine.Read(&r.cluster, r.now())
		r.reading.Set(r.clock.Now() + Period)
	}
	return nil
}

// number returns the value of an option, an integer from 0 to most.
func number(o scenario.Option, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(o.Value, 10, 64)
	if err != nil || n > most {
		return 0, fmt.Errorf("%s: %q: want an integer from 0 to %d", o.Key, o.Value, most)
	}
	return n, nil
}

// setValue sets a label or annotation.
func setValue(labels, annotations *map[string]string, kind, key, value string) error {
	if len(value) > MaxValue || len(key) > MaxValue || strings.Contains(value+key, "\x00") {
		return fmt.Errorf("%s:%.60q: keys and values have at most %d bytes, none of them zero", kind, key, MaxValue)
	}
	into := labels
	if kind == "annotation" {
		into = annotations
	}
	if *into == nil {
		*into = map[string]string{}
	}
	(*into)[key] = value
	return nil
}

// setLoad sets a number that an endpoint reports; "": it reports none.
func setLoad(load *map[string]string, field, value string) error {
	n, err := strconv.ParseFloat(value, 64)
	switch {
	case !abi.IsLoadName(field):
		return fmt.Errorf("load:%.60s: want a field of a load report, for example load:application_utilization=0.7, or load:utilization/NAME", field)
	case value == "":
		delete(*load, field)
		return nil
	case err != nil || n < 0 || n > MaxLoad || strings.ContainsAny(value, "xXeEpP_+"):
		return fmt.Errorf("load:%s: %.60q: want a decimal number from 0 to %d", field, value, MaxLoad)
	}
	if *load == nil {
		*load = map[string]string{}
	}
	(*load)[field] = value
	return nil
}

// checkName returns an error if a name is none of an object.
func checkName(name string) error {
	if name == "" || len(name) > 253 || strings.ContainsAny(name, "\x00/ \n=") {
		return fmt.Errorf("%.60q: want a name of 1 to 253 bytes, without spaces, / and =", name)
	}
	return nil
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
