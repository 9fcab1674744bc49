package simulation

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Input is what is simulated.
type Input struct {
	Cluster *model.Snapshot // at the beginning, all Nodes; read-only
	Runs    []Config        // the candidate, and the baseline if there is one
	// Only chooses the Services that are simulated; nil: all. What happens to the cluster is the same.
	Only func(model.Name) bool
	// Asked are Services that the Result lists in any case.
	Asked      []model.Name
	Conditions verdict.Conditions // to which the metrics of all Services and runs are added
	Demand     *Demand
	Capacity   Capacity
	Timeline   *scenario.File // see Verbs; nil: the cluster as it is, for one instant
	// Start is when the timeline begins, for plugins, not before Earliest; zero: the first time from then on that fits the clock
	// of the timeline.
	Start time.Time
	Seed  int64 // for what the timeline and the demand leave open
	// EveryNode computes each node by itself. Otherwise nodes that see the same input are computed once.
	EveryNode bool
	// Lifetime of a connection, the mean of an exponential distribution; 0: 30 s. It is used for the number of open connections.
	Lifetime time.Duration
	Step     time.Duration // between two samples; 0: a second, or more so that there are at most MaxSamples
}

// Config is a configuration to simulate.
type Config struct {
	File     string           // "" for the default rules
	Settings planner.Settings // those of a node; the fields about the node itself are ignored
	Period   time.Duration    // between two readings of outcomes; 0: 500 ms
	Plugins  []PluginInfo
}

// Plugins returns the current revision of a plugin by name, see policy.NewEvaluator.
type Plugins func(name string) (policy.Plugin, error)

// What the simulation does before the beginning, so that the beginning is not a start: plugins with requeue times decide for
// settle, and outcomes are counted for countBefore.
const (
	settle      = 5 * time.Minute
	countBefore = 5 * time.Second
)

// Defaults of Input and Config.
const (
	defaultLifetime = 30 * time.Second
	defaultPeriod   = 500 * time.Millisecond
	minStep         = time.Second
)

// Capacity is where the capacity of an endpoint is from, relative to the other endpoints of its Service: a key of its Pod as in
// abi.KeyKind; "": all are equal.
type Capacity string

// ParseCapacity parses equal, request:cpu, annotation:KEY or label:KEY.
func ParseCapacity(text string) (Capacity, error) {
	if text == "equal" {
		return "", nil
	}
	if keys, err := abi.ParseKeys(text); err != nil || len(keys) != 1 || !abi.IsPodKey(text) {
		return "", fmt.Errorf("%q: want equal, request:cpu, annotation:KEY or label:KEY", text)
	}
	return Capacity(text), nil
}

// String describes it.
func (c Capacity) String() string {
	if c == "" {
		return "equal"
	}
	return string(c) + " of Pods"
}

// of returns the capacity of a Pod, which may be nil: 1 if it is unknown or not a positive number. CPU is in cores.
func (c Capacity) of(pod *model.Pod) float64 {
	if c == "" || pod == nil {
		return 1
	}
	text := ""
	switch kind, name, _ := abi.KeyKind(string(c)); kind {
	case abi.KeyPodCPU:
		return cmp.Or(float64(pod.MilliCPU)/1000, 1)
	case abi.KeyPodAnnotation:
		text = pod.Annotations[name]
	case abi.KeyPodLabel:
		text = pod.Labels[name]
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && f > 0 && f < 1e9 {
		return f
	}
	return 1
}
