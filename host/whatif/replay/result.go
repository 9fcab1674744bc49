package replay

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// Result is the outcome of a replay. Lists are sorted, so that the same recording gives the same bytes of JSON. Shares are 0 to 1.
type Result struct {
	Header recording.Header `json:"recording"`
	From   time.Time        `json:"from"` // of the first record, by the clock of the planner
	To     time.Time        `json:"to"`   // of the last one
	// Changes and Readings are what has been replayed, after the state at the beginning; Dropped was not recorded in time.
	Changes  int    `json:"changes"`
	Readings int    `json:"readings"`
	Dropped  uint64 `json:"dropped"`
	// Truncated: the recording ends without having been closed; what was complete is replayed.
	Truncated bool `json:"truncated"`
	// Services and Endpoints are those at the end.
	Services  int             `json:"services"`
	Endpoints int             `json:"endpoints"`
	Keep      *recording.Keep `json:"keep"` // the values of Pods and Services that are recorded
	Runs      []Run           `json:"runs"`
	// Comparison is nil with one run.
	Comparison *Comparison `json:"comparison"`
	// Notes are what the reader has to know.
	Notes []string `json:"notes"`
}

// Run is what one configuration would have done.
type Run struct {
	Name    string   `json:"name"`
	Config  string   `json:"config"`
	Summary Summary  `json:"summary"`
	Errors  []string `json:"errors"` // each once, at most MaxErrors
}

// Summary is a Run in a few numbers.
type Summary struct {
	Updates       uint64 `json:"updates"`       // of the kernel
	WeightChanges uint64 `json:"weightChanges"` // endpoints of frontends that are added, deleted, or get another weight
	Resets        uint64 `json:"resets"`        // connections of an endpoint through a frontend that are reset
	PluginCalls   uint64 `json:"pluginCalls"`
	Errors        uint64 `json:"errors"`        // failures of policies, each once while it lasts
	MaxEmptyPools int    `json:"maxEmptyPools"` // frontends without an endpoint at one time

	emptyNow int
}

// Comparison is how run B differs from run A.
type Comparison struct {
	// MaxDivergence is the largest share of the new connections to a Service port that goes elsewhere; MeanDivergence the mean over time
	// and all Service ports.
	MaxDivergence  float64 `json:"maxDivergence"`
	MeanDivergence float64 `json:"meanDivergence"`
	Series         Series  `json:"series"`
	// Services are those that differ, those that differ most first, at most MaxServices; Differing is the number of all.
	Services  []Service `json:"services"`
	Differing int       `json:"differing"`
}

// Service is a Service port in one family that differs.
type Service struct {
	Service        string  `json:"service"` // namespace/name
	Port           string  `json:"port"`
	Protocol       string  `json:"protocol"`
	Family         string  `json:"family"`
	MaxDivergence  float64 `json:"maxDivergence"`
	MeanDivergence float64 `json:"meanDivergence"` // over the time of the recording
	Seconds        float64 `json:"seconds"`        // for which it differs
	// Periods are when it differs, the first MaxPeriods; Omitted is the number of others.
	Periods []Period `json:"periods"`
	Omitted int      `json:"omitted"`
}

// Period is a time in which the runs differ for a Service port.
type Period struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Divergence is the largest one in this time, at At; Endpoints are those whose shares differ most then, at most MaxEndpoints.
	Divergence float64    `json:"divergence"`
	At         time.Time  `json:"at"`
	Frontend   string     `json:"frontend"` // on which
	Endpoints  []Endpoint `json:"endpoints"`
}

// Endpoint is an endpoint with its shares of new connections.
type Endpoint struct {
	Address string  `json:"address"`
	Pod     string  `json:"pod,omitempty"`
	Zone    string  `json:"zone,omitempty"`
	A       float64 `json:"a"`
	B       float64 `json:"b"`
}

// Limits of a Result.
const (
	MaxServices  = 50
	MaxPeriods   = 20
	MaxEndpoints = 8
	MaxErrors    = 20
)

// Metric is a number of a Result.
type Metric struct {
	Name  string
	Value float64
	Share bool // 0 to 1
	// Comparison: of the runs with each other, 0 if there is one.
	Comparison bool
}

// Metrics returns the numbers of a run in a fixed order; those of the comparison are the same for both runs.
func (r *Result) Metrics(run int) []Metric {
	s, c := &r.Runs[run].Summary, r.Comparison
	if c == nil {
		c = &Comparison{}
	}
	return []Metric{
		{Name: "updates", Value: float64(s.Updates)},
		{Name: "weight_changes", Value: float64(s.WeightChanges)},
		{Name: "resets", Value: float64(s.Resets)},
		{Name: "plugin_calls", Value: float64(s.PluginCalls)},
		{Name: "errors", Value: float64(s.Errors)},
		{Name: "max_empty_pools", Value: float64(s.MaxEmptyPools)},
		{Name: "differing_services", Value: float64(c.Differing), Comparison: true},
		{Name: "max_divergence", Value: c.MaxDivergence, Share: true, Comparison: true},
		{Name: "mean_divergence", Value: c.MeanDivergence, Share: true, Comparison: true},
	}
}

// weightChanges returns how many endpoints of the pools of a frontend change.
func weightChanges(before, now *plan.Frontend) (n uint64) {
	weights := func(f *plan.Frontend, outside bool) map[netip.AddrPort]uint16 {
		out := map[netip.AddrPort]uint16{}
		if f == nil {
			return out
		}
		p := &f.Pool
		if outside {
			if p = f.Outside; p == nil {
				return out
			}
		}
		for i := range p.Endpoints {
			out[p.Endpoints[i].Addr] = p.Endpoints[i].Weight
		}
		return out
	}
	for _, outside := range []bool{false, true} {
		old, current := weights(before, outside), weights(now, outside)
		for a, w := range current {
			if v, ok := old[a]; !ok || v != w {
				n++
			}
			delete(old, a)
		}
		n += uint64(len(old))
	}
	return n
}

// empty counts frontends without an endpoint.
func (s *Summary) empty(c *plan.Change) {
	isEmpty := func(f *plan.Frontend) int {
		if f != nil && f.Pool.Verdict == plan.Reject && (f.Outside == nil || f.Outside.Verdict == plan.Reject) {
			return 1
		}
		return 0
	}
	s.emptyNow += isEmpty(c.New) - isEmpty(c.Old)
}
