package state

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Drains is the output of `sluice drains -o json`: the endpoints of this node's plan that drain.
type Drains struct {
	Node string    `json:"node"`
	At   time.Time `json:"at"`
	// Drains are sorted by Service, port and address.
	Drains []Drain `json:"drains"`
	// OmittedServices is the number of Services with drains beyond the limit of an answer.
	OmittedServices int `json:"omittedServices,omitempty"`
	// ConnectionsError is why the connections are not known; "": they are.
	ConnectionsError string `json:"connectionsError,omitempty"`
}

// Stages of a Drain.
const (
	StageServing  = "Serving"  // it still gets new connections
	StageDraining = "Draining" // it gets no new connections; established ones continue
	StageShedding = "Shedding" // part of its established connections is reset each minute
	StageReset    = "Reset"    // its drain deadline has passed: its connections have been reset
)

// Drain is an endpoint of a Service port that drains.
type Drain struct {
	Service  string `json:"service"`
	Port     string `json:"port"`
	Number   uint16 `json:"number"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Address  string `json:"address"`
	Pod      string `json:"pod,omitempty"`
	Node     string `json:"node,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Since is when the endpoint began to drain, as far as this node has seen it; nil: not known.
	Since  *time.Time `json:"since,omitempty"`
	Policy string     `json:"policy,omitempty"`
	Stage  string     `json:"stage"`
	Why    string     `json:"why"`
	Steps  []Step     `json:"steps,omitempty"`
	Weight uint16     `json:"weight"`
	Share  float64    `json:"share"` // of new connections, 0 to 1
	// ResetAt is when the connections that are left are reset; nil: never.
	ResetAt *time.Time `json:"resetAt,omitempty"`
	Shed    *Shed      `json:"shed,omitempty"`
	// Connections is the number of open connections through this node: of TCP, established ones; nil: not known.
	Connections *uint32 `json:"connections,omitempty"`
}

// maxDrainServices bounds the Services of a Drains.
const maxDrainServices = 200

// Filter leaves the drains of a Service, namespace/name, or of a namespace; "" is all.
func (x *Drains) Filter(namespace, service string) {
	x.Drains = slices.DeleteFunc(x.Drains, func(d Drain) bool {
		ns, _, _ := strings.Cut(d.Service, "/")
		return service != "" && d.Service != service || service == "" && namespace != "" && ns != namespace
	})
}

// newDrains returns the drains of a Service.
func newDrains(e *planner.Explanation, now time.Time, wallTime func(int64) time.Time) (out []Drain) {
	for i := range e.Decisions {
		d := &e.Decisions[i]
		var pool *Pool
		for j := range d.Port.Endpoints {
			if !d.Drains(j) {
				continue
			}
			if pool == nil {
				of, kind := &d.Cluster, abi.PoolCluster
				if !d.Port.UsesCluster {
					of, kind = &d.Local, abi.PoolLocal
				}
				p := newPool(d.Port, of, uint8(kind), e.Policy, wallTime)
				pool = &p
			}
			row := &pool.Endpoints[j]
			x := Drain{
				Service: e.Service.Name.String(), Port: pool.Port, Number: pool.Number, Protocol: pool.Protocol, Family: pool.Family,
				Address: row.Address, Pod: row.Pod, Node: row.Node, Zone: row.Zone,
				Why: row.Why, Steps: row.Steps, Weight: row.Weight, Share: row.Share, ResetAt: row.ResetAt, Shed: row.Shed,
			}
			if e.Policy != nil {
				x.Policy = e.Policy.Name
			}
			if ms := e.DrainingSince[d.Port.Endpoints[j].Addr]; ms != 0 {
				at := wallTime(ms).UTC()
				x.Since = &at
			}
			switch {
			case x.ResetAt != nil && !x.ResetAt.After(now):
				x.Stage = StageReset
			case x.Shed != nil:
				x.Stage = StageShedding
			case x.Weight > 0:
				x.Stage = StageServing
			default:
				x.Stage = StageDraining
			}
			out = append(out, x)
		}
	}
	return out
}

// CountConnections adds the open connections to the endpoints that are in count.
type CountConnections func(ctx context.Context, count map[model.EndpointKey]uint32) error

// Drains returns the endpoints that drain, with their open connections.
func (a *Agent) Drains(ctx context.Context) (*Drains, error) {
	x, err := readDrains(ctx, a.Engine)
	if err != nil {
		return nil, err
	}
	x.Node = a.NodeName
	x.addConnections(ctx, a.Connections)
	return x, nil
}

// readDrains returns the drains of an engine. Between two Services it lets the engine work.
func readDrains(ctx context.Context, e *engine.Engine) (*Drains, error) {
	out := &Drains{At: time.Now().UTC(), Drains: []Drain{}}
	var names []model.Name
	if err := e.Do(ctx, func(p *planner.Planner) { names, out.OmittedServices = p.Draining(maxDrainServices) }); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := e.Do(ctx, func(p *planner.Planner) {
			if x, err := p.Explain(name); err == nil { // else it has been deleted since
				out.Drains = append(out.Drains, newDrains(x, out.At, e.WallTime)...)
			}
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addConnections counts the open connections of all drains.
func (x *Drains) addConnections(ctx context.Context, counter CountConnections) {
	if len(x.Drains) == 0 {
		return
	}
	count := map[model.EndpointKey]uint32{}
	for i := range x.Drains {
		if k, ok := x.Drains[i].key(); ok {
			count[k] = 0
		}
	}
	if err := counter(ctx, count); err != nil {
		x.ConnectionsError = err.Error()
		return
	}
	for i := range x.Drains {
		if k, ok := x.Drains[i].key(); ok {
			n := count[k]
			x.Drains[i].Connections = &n
		}
	}
}

func (x *Drain) key() (model.EndpointKey, bool) {
	addr, err := netip.ParseAddrPort(x.Address)
	protocol, ok := model.ParseProtocol(strings.ToUpper(x.Protocol))
	return model.EndpointKey{Addr: addr, Protocol: protocol}, err == nil && ok
}
