package api

import (
	"slices"
	"strings"
	"time"
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

// Filter leaves the drains of a Service, namespace/name, or of a namespace; "" is all.
func (x *Drains) Filter(namespace, service string) {
	x.Drains = slices.DeleteFunc(x.Drains, func(d Drain) bool {
		ns, _, _ := strings.Cut(d.Service, "/")
		return service != "" && d.Service != service || service == "" && namespace != "" && ns != namespace
	})
}
