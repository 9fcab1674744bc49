package replay

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// Result is the outcome of a replay. Lists are sorted, so that the same recording gives the same bytes of JSON. Shares are 0
// to 1.
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
	Runs      []Run           `json:"runs"` // the candidate, and the baseline if there is one
	// Comparison is nil with one run.
	Comparison *Comparison `json:"comparison"`
	// Notes are what the reader has to know.
	Notes []string `json:"notes"`
}

// Run is what one configuration would have done.
type Run struct {
	verdict.Run
	Summary Summary `json:"summary"`
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

// Comparison is how the candidate differs from the baseline.
type Comparison struct {
	Metrics []verdict.Change `json:"metrics"`
	// MaxDivergence is the largest share of the new connections to a Service port that goes elsewhere; MeanDivergence the mean
	// over time and all Service ports.
	MaxDivergence  float64 `json:"maxDivergence"`
	MeanDivergence float64 `json:"meanDivergence"`
	Series         Series  `json:"series"`
	// Services are those that differ, those that differ most first, at most MaxServices; Differing is the number of all.
	Services  []Service `json:"services"`
	Differing int       `json:"differing"`
}

// Service is a Service port in one family that differs.
type Service struct {
	verdict.ServicePort
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
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Zone    string `json:"zone,omitempty"`
	verdict.Pair
}

// Limits of a Result.
const (
	MaxServices  = 50
	MaxPeriods   = 20
	MaxEndpoints = 8
)

// Metrics returns the numbers of a run in a fixed order, with those of the comparison, which are the same for both runs, if there
// is one.
func (r *Result) Metrics(run int) []verdict.Metric {
	out := r.Runs[run].Summary.metrics()
	if r.Comparison != nil {
		out = append(out, r.Comparison.metrics()...)
	}
	return out
}

// Table returns the numbers of the result.
func (r *Result) Table() (t verdict.Table) {
	for i := range r.Runs {
		t.Runs, t.Metrics = append(t.Runs, r.Runs[i].Run), append(t.Metrics, r.Metrics(i))
	}
	if r.Comparison != nil {
		t.Changes = r.Comparison.Metrics
	}
	return t
}

func (s *Summary) metrics() []verdict.Metric {
	return []verdict.Metric{
		{Name: "updates", Value: float64(s.Updates), Text: "updates"},
		{Name: "weight_changes", Value: float64(s.WeightChanges), Text: "weight changes"},
		{Name: "resets", Value: float64(s.Resets), Text: "resets"},
		{Name: "plugin_calls", Value: float64(s.PluginCalls), Neutral: true},
		{Name: "errors", Value: float64(s.Errors), Text: "failures of policies"},
		{Name: "max_empty_pools", Value: float64(s.MaxEmptyPools), Text: "empty pools at one time"},
	}
}

func (c *Comparison) metrics() []verdict.Metric {
	return []verdict.Metric{
		{Name: "differing_services", Value: float64(c.Differing), Neutral: true},
		{Name: "max_divergence", Value: c.MaxDivergence, Unit: verdict.Share, Neutral: true},
		{Name: "mean_divergence", Value: c.MeanDivergence, Unit: verdict.Share, Neutral: true},
	}
}

// Metrics returns the numbers of a Service port in a fixed order.
func (s *Service) Metrics() []verdict.Metric {
	return []verdict.Metric{
		{Name: "max_divergence", Value: s.MaxDivergence, Unit: verdict.Share, Neutral: true},
		{Name: "mean_divergence", Value: s.MeanDivergence, Unit: verdict.Share, Neutral: true},
		{Name: "seconds", Value: s.Seconds, Neutral: true},
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
