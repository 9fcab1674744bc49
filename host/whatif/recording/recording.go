// Package recording defines the file that `sluice run --record` writes: what a node saw, with times, so that `sluice replay` can
// decide about it again. A recording is a gzip stream of JSON, one record per line.
//
// It is pure: no clock, no file. Times are by the clock of the planner, and given by the caller.
package recording

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// Format is the version of the format. A reader refuses others.
const Format = 1

// Limits of a recording. A reader refuses what is beyond them.
const (
	maxLine      = 8 << 20             // bytes
	maxObjects   = 2 << 20             // of all kinds together
	maxEndpoints = 8 << 20             // of all EndpointSlices together
	maxInSlice   = 10_000              // Kubernetes allows 1,000
	maxCounters  = 1 << 20             // endpoints in a reading
	maxDuration  = 31 * 24 * time.Hour // from the first record to the last one
	maxKeys      = 10_000
	maxRouteRefs = 48 // parents and backends of a route
)

// Header is the first line of a recording.
type Header struct {
	Format  int       `json:"sluiceRecording"`
	Version string    `json:"version"` // of sluice
	Node    string    `json:"node"`
	Mode    string    `json:"mode"`
	Started time.Time `json:"started"` // by the wall clock
}

// Keep says which values of Pods, Services and load are recorded: those that plugins of the node have declared, by key, sorted.
// Others never reach a recording.
type Keep struct {
	PodLabels          []string `json:"podLabels,omitempty"`
	PodAnnotations     []string `json:"podAnnotations,omitempty"`
	ServiceAnnotations []string `json:"serviceAnnotations,omitempty"`
	NamespaceLabels    []string `json:"namespaceLabels,omitempty"`
	Load               []string `json:"load,omitempty"`
}

// Equal reports whether the same is kept.
func (k *Keep) Equal(l *Keep) bool {
	return slices.Equal(k.PodLabels, l.PodLabels) && slices.Equal(k.PodAnnotations, l.PodAnnotations) && slices.Equal(k.ServiceAnnotations, l.ServiceAnnotations) &&
		slices.Equal(k.NamespaceLabels, l.NamespaceLabels) && slices.Equal(k.Load, l.Load)
}

// ReadingKind is what happened to the outcomes of connections.
type ReadingKind string

// The kinds of Reading.
const (
	Read    ReadingKind = "read"    // the counters were read
	Begun   ReadingKind = "begun"   // counting has begun again, from zero
	Stopped ReadingKind = "stopped" // nothing counts any more
	Rebased ReadingKind = "rebased" // another data plane counts from now on
)

// Reading is a reading of the outcomes of connections.
type Reading struct {
	Kind     ReadingKind
	Interval time.Duration // to the next reading, with Read
	// Counters are those of all counted endpoints, with Read. A Reader changes the map with the next record.
	Counters map[model.EndpointKey]outcomes.Counters
}

// Record is what the planner was given at one time.
type Record struct {
	At time.Time
	// State: Changes are all objects of the cluster, and replace those before: at the beginning, and after changes have been
	// lost.
	State   bool
	Keep    Keep   // with State
	Lost    uint64 // with State: changes since the last record that were not recorded, of at least that many objects
	Changes []model.Change
	Reading *Reading                     // nil: none
	Open    map[model.EndpointKey]uint32 // open connections; nil: no count
	Closed  bool                         // open connections are not counted any more
	End     bool                         // the recording was closed, and is complete
}

// line is the JSON form of a part of a Record.
type line struct {
	At      int64        `json:"t"` // Unix nanoseconds
	State   *wireState   `json:"state,omitempty"`
	Changes []wireChange `json:"changes,omitempty"`
	More    bool         `json:"more,omitempty"` // the next line belongs to the same record
	Reading *wireReading `json:"outcomes,omitempty"`
	Open    []wireCount  `json:"connections,omitempty"`
	Counted bool         `json:"counted,omitempty"` // Open is complete, also if it is empty
	Closed  bool         `json:"uncounted,omitempty"`
	End     bool         `json:"end,omitempty"`
}

type wireState struct {
	Keep
	Lost uint64 `json:"lost,omitempty"`
}

// wireChange has one field.
type wireChange struct {
	Service *wireService       `json:"service,omitempty"`
	Slice   *wireSlice         `json:"slice,omitempty"`
	Node    *model.Node        `json:"node,omitempty"`
	CIDR    *model.ServiceCIDR `json:"cidr,omitempty"`
	Pod     *model.Pod         `json:"pod,omitempty"`
	Route   *model.Route       `json:"route,omitempty"`
	Deleted *wireDeleted       `json:"deleted,omitempty"`
	// Nodes is model.Snapshot.NodesPartial, PodsOnDemand the same of the Snapshot.
	Nodes        *bool            `json:"nodesPartial,omitempty"`
	PodsOnDemand *bool            `json:"podsOnDemand,omitempty"`
	Pods         *wirePods        `json:"pods,omitempty"`
	Namespace    *model.Namespace `json:"namespace,omitempty"`
	// NodeLabels and NamespaceLabels are those of model.Snapshot.
	NodeLabels      *[]string `json:"nodeLabels,omitempty"`
	NamespaceLabels *[]string `json:"namespaceLabels,omitempty"`
	Load            *wireLoad `json:"load,omitempty"`
	LoadRead        *[]string `json:"loadRead,omitempty"` // that of model.Snapshot
}

// wireLoad is load that the endpoints of a Service report.
type wireLoad struct {
	Service model.Name                       `json:"service"`
	Values  map[netip.Addr]map[string]string `json:"values,omitempty"`
}

type wireDeleted struct {
	Kind      model.Kind `json:"kind"`
	Group     string     `json:"group,omitempty"` // with model.RouteKind: the kind
	Namespace string     `json:"ns,omitempty"`
	Name      string     `json:"name"`
}

type wirePods struct {
	Service model.Name      `json:"service"`
	State   model.PodsState `json:"state"`
}

// wireService is a Service with its annotations in a form that is valid JSON.
type wireService struct {
	model.Service
	Annotations []byte `json:",omitempty"`
}

// wireSlice is an EndpointSlice. If the reader has it already, the first Head and the last Tail of its endpoints stay.
type wireSlice struct {
	Name      model.Name        `json:"name"`
	Patch     bool              `json:"patch,omitempty"` // nothing changes but endpoints, trigger time and version
	Service   string            `json:"service,omitempty"`
	Family    model.Family      `json:"family,omitempty"`
	Ports     []model.SlicePort `json:"ports,omitempty"`
	Trigger   int64             `json:"trigger,omitempty"`
	Version   uint64            `json:"version,omitempty"`
	Head      int               `json:"head,omitempty"`
	Tail      int               `json:"tail,omitempty"`
	Endpoints []wireEndpoint    `json:"eps,omitempty"`
}

type wireEndpoint struct {
	Addr        netip.Addr   `json:"a"`
	Node        string       `json:"n,omitempty"`
	Zone        string       `json:"z,omitempty"`
	Ready       bool         `json:"r,omitempty"`
	Serving     bool         `json:"s,omitempty"`
	Terminating bool         `json:"t,omitempty"`
	Hints       *model.Hints `json:"h,omitempty"`
	Pod         string       `json:"p,omitempty"`
}

// wireReading has the counters that have changed since the reading before, and the endpoints that are not counted any more.
type wireReading struct {
	Kind     ReadingKind   `json:"kind"`
	Interval time.Duration `json:"interval,omitempty"` // nanoseconds
	Changed  []wireCount   `json:"changed,omitempty"`
	Gone     []wireCount   `json:"gone,omitempty"`
	All      bool          `json:"all,omitempty"` // Changed are all counters
}

// wireCount are numbers of an endpoint: attempts, answered and refused; or open connections.
type wireCount struct {
	Addr     netip.AddrPort `json:"a"`
	Protocol model.Protocol `json:"p"`
	N        []uint64       `json:"n,omitempty"`
}

func (c *wireCount) key() model.EndpointKey {
	return model.EndpointKey{Addr: c.Addr, Protocol: c.Protocol}
}
