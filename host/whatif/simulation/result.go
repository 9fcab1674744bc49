package simulation

import "github.com/sluice-proxy/sluice/host/whatif/verdict"

// Result is the outcome of a simulation: one or two runs over the same cluster, demand and timeline. Lists are sorted, so that
// the same input gives the same bytes of JSON. Rates are new connections per second; shares are 0 to 1; times are virtual seconds
// since the beginning.
type Result struct {
	Seed      int64    `json:"seed"`
	Nodes     int      `json:"nodes"`
	Services  int      `json:"services"`  // that are simulated
	Endpoints int      `json:"endpoints"` // entries of their EndpointSlices at the beginning
	Asked     []string `json:"asked"`     // Services that are asked about: by the caller, or in the timeline; at most MaxAsked
	Zones     []string `json:"zones"`     // of Nodes and endpoints, sorted; "": unknown
	Demand    string   `json:"demand"`    // where the demand is from
	Capacity  string   `json:"capacity"`  // where capacities are from
	Timeline  string   `json:"timeline"`  // file, "" for none

	DurationSeconds float64 `json:"durationSeconds"`
	StepSeconds     float64 `json:"stepSeconds"` // between two samples; 0: there is one sample
	Events          []Event `json:"events"`

	Runs       []Run       `json:"runs"`       // the candidate, and the baseline if there is one
	Comparison *Comparison `json:"comparison"` // nil with one run
	// Notes are what the reader has to know: what is assumed, and what has been left out.
	Notes []string `json:"notes"`
}

// Event is a statement of the timeline, or what followed from it.
type Event struct {
	Seconds float64 `json:"seconds"`
	Text    string  `json:"text"`
	// Line is that of the statement, 0 for what follows from one: Nodes that are detected, Pods that are replaced.
	Line int `json:"line"`
}

// Run is what one configuration decides.
type Run struct {
	verdict.Run
	Plugins  []PluginInfo `json:"plugins"`
	Policies []PolicyInfo `json:"policies"`
	Summary  Summary      `json:"summary"`
	Series   []Sample     `json:"series"`
	// Services are those with the largest overload or divergence, the worst first, at most MaxServices of each, and those that
	// are asked about.
	Services []ServiceResult `json:"services"`
}

// PluginInfo identifies the code of a plugin.
type PluginInfo struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`   // of the module
	Revision string `json:"revision"` // of the code that answers
}

// PolicyInfo is a policy that Services have.
type PolicyInfo struct {
	Name     string `json:"name"`     // "" for the default rules
	Revision string `json:"revision"` // "" for the default rules, and while a plugin is not loaded
	Services int    `json:"services"` // of which at least one node has it
	// PerNode reports that its decisions depend on the node itself, so that each node was computed.
	PerNode bool `json:"perNode"`
}

// Summary is a Run in a few numbers. Metrics names them.
type Summary struct {
	// MaxOverload is the largest ratio of an endpoint's load to its fair share at a sample; P99Overload is the 99th percentile
	// over all endpoints that are ready and samples, MeanOverload the mean weighted by load. 1: no endpoint has more than its
	// fair share.
	MaxOverload  float64 `json:"maxOverload"`
	P99Overload  float64 `json:"p99Overload"`
	MeanOverload float64 `json:"meanOverload"`
	// Shares of all new connections.
	CrossZoneShare float64 `json:"crossZoneShare"` // to an endpoint of another zone; connections from or to an unknown zone do not count
	FailedShare    float64 `json:"failedShare"`    // refused or unanswered, or without an endpoint
	// EmptyPools and SingleEndpointPools are the largest numbers at a sample, see Sample.
	EmptyPools          int `json:"emptyPools"`
	SingleEndpointPools int `json:"singleEndpointPools"`
	// Totals from the beginning on; without a timeline, PluginCalls includes what it takes to reach the state at the beginning.
	WeightChanges uint64 `json:"weightChanges"`
	PluginCalls   uint64 `json:"pluginCalls"`
	Errors        int    `json:"errors"` // Services whose policy has failed on some node
	// Divergence is the share of new connections that goes to another endpoint than in the other run; 0 if there is one run.
	Divergence float64 `json:"divergence"`
}

// Sample is the state of the cluster at one time.
type Sample struct {
	Seconds    float64   `json:"seconds"`
	Demand     float64   `json:"demand"`     // connections/s of all nodes
	ZoneDemand []float64 `json:"zoneDemand"` // of the nodes of each of Result.Zones
	ZoneLoad   []float64 `json:"zoneLoad"`   // to the endpoints of each of Result.Zones

	CrossZoneShare float64 `json:"crossZoneShare"`
	FailedShare    float64 `json:"failedShare"`
	MaxOverload    float64 `json:"maxOverload"`
	P99Overload    float64 `json:"p99Overload"`
	MeanOverload   float64 `json:"meanOverload"`

	// EmptyPools are Service ports on a node without an endpoint that gets connections, of Services that have endpoints.
	// SingleEndpointPools are those where only one gets connections although several may. Both are summed over the nodes.
	EmptyPools          int `json:"emptyPools"`
	SingleEndpointPools int `json:"singleEndpointPools"`

	// Since the sample before. A weight change is an endpoint of a pool that a node's kernel has with another weight afterwards;
	// it is added, deleted or changed. All nodes count.
	WeightChanges uint64 `json:"weightChanges"`
	PluginCalls   uint64 `json:"pluginCalls"`
}

// ServiceResult is a Service port in one family.
type ServiceResult struct {
	verdict.ServicePort
	Policy string `json:"policy"` // of most of its nodes, "" for the default rules

	// Route is the route of the port, kind and name, "" for none; Backends are those over which it splits new connections.
	Route    string          `json:"route,omitempty"`
	Backends []BackendResult `json:"backends,omitempty"`

	MaxOverload    float64 `json:"maxOverload"`
	MaxAtSeconds   float64 `json:"maxAtSeconds"` // when MaxOverload is reached first
	P99Overload    float64 `json:"p99Overload"`
	MeanOverload   float64 `json:"meanOverload"`
	CrossZoneShare float64 `json:"crossZoneShare"`
	FailedShare    float64 `json:"failedShare"`
	EmptyPools     int     `json:"emptyPools"` // the largest number
	SinglePools    int     `json:"singleEndpointPools"`
	WeightChanges  uint64  `json:"weightChanges"` // of all ports of the Service
	PluginCalls    uint64  `json:"pluginCalls"`   // likewise
	Divergence     float64 `json:"divergence"`    // from the other run

	// ZoneMatrix[i][j] are the connections/s from the nodes of Result.Zones[i] to the endpoints of Result.Zones[j], the mean over
	// time.
	ZoneMatrix [][]float64 `json:"zoneMatrix"`
	// Endpoints are those with the largest overload, at most MaxEndpoints, sorted by address; EndpointsOmitted is the number of
	// the others.
	Endpoints        []EndpointResult `json:"endpoints"`
	EndpointsOmitted int              `json:"endpointsOmitted"`
	Error            string           `json:"error,omitempty"` // the first failure of its policy
}

// EndpointResult is the load of an endpoint.
type EndpointResult struct {
	Address  string    `json:"address"` // IP:port
	Pod      string    `json:"pod"`     // "" when unknown
	Node     string    `json:"node"`
	Zone     string    `json:"zone"`
	Capacity float64   `json:"capacity"` // relative to the other endpoints of the Service
	Load     []float64 `json:"load"`     // connections/s at each of Run.Series; 0 while it is not an endpoint
	Overload []float64 `json:"overload"` // ratio to its fair share at each of Run.Series
}

// Comparison is how the candidate differs from the baseline.
type Comparison struct {
	Metrics    []verdict.Change `json:"metrics"`    // of the summaries
	Divergence float64          `json:"divergence"` // share of new connections that goes to another endpoint
	Series     []float64        `json:"series"`     // divergence at each of Run.Series
	// Services are those whose connections diverge most, at most MaxServices. Run.Services of both runs contain all of them.
	Services []ServiceComparison `json:"services"`
}

// ServiceComparison is how the candidate differs from the baseline for a Service port in one family.
type ServiceComparison struct {
	verdict.ServicePort
	Divergence     float64      `json:"divergence"`
	MaxOverload    verdict.Pair `json:"maxOverload"`
	CrossZoneShare verdict.Pair `json:"crossZoneShare"`
	FailedShare    verdict.Pair `json:"failedShare"`
}

// Limits of a Result.
const (
	MaxServices  = 50
	MaxAsked     = 16
	MaxEndpoints = 64
	MaxSamples   = 2000
)

// Table returns the numbers of the result.
func (r *Result) Table() (t verdict.Table) {
	for i := range r.Runs {
		t.Runs, t.Metrics = append(t.Runs, r.Runs[i].Run), append(t.Metrics, r.Runs[i].Summary.Metrics())
	}
	if r.Comparison != nil {
		t.Changes = r.Comparison.Metrics
	}
	return t
}

// Metrics returns the numbers of a summary in a fixed order.
func (s *Summary) Metrics() []verdict.Metric {
	return []verdict.Metric{
		{Name: "max_overload", Value: s.MaxOverload, Unit: verdict.Ratio, Text: "largest overload"},
		{Name: "p99_overload", Value: s.P99Overload, Unit: verdict.Ratio},
		{Name: "mean_overload", Value: s.MeanOverload, Unit: verdict.Ratio},
		{Name: "cross_zone_share", Value: s.CrossZoneShare, Unit: verdict.Share, Text: "connections across zones"},
		{Name: "failed_share", Value: s.FailedShare, Unit: verdict.Share, Text: "failed connections"},
		{Name: "empty_pools", Value: float64(s.EmptyPools), Text: "empty pools"},
		{Name: "single_endpoint_pools", Value: float64(s.SingleEndpointPools), Text: "pools with a single endpoint"},
		{Name: "weight_changes", Value: float64(s.WeightChanges), Text: "weight changes"},
		{Name: "plugin_calls", Value: float64(s.PluginCalls), Neutral: true},
		{Name: "errors", Value: float64(s.Errors), Text: "failing policies"},
		{Name: "divergence", Value: s.Divergence, Unit: verdict.Share, Neutral: true},
	}
}

// Metrics returns the numbers of a Service port: those of Summary.
func (s *ServiceResult) Metrics() []verdict.Metric {
	sum := Summary{
		MaxOverload: s.MaxOverload, P99Overload: s.P99Overload, MeanOverload: s.MeanOverload, CrossZoneShare: s.CrossZoneShare, FailedShare: s.FailedShare,
		EmptyPools: s.EmptyPools, SingleEndpointPools: s.SinglePools, WeightChanges: s.WeightChanges, PluginCalls: s.PluginCalls, Divergence: s.Divergence,
	}
	if s.Error != "" {
		sum.Errors = 1
	}
	return sum.Metrics()
}
