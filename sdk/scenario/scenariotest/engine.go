package scenariotest

import "time"

// Engine decides for the Service of a scenario, as a node does. Times do not decrease.
type Engine interface {
	// Plan decides for both pools if that is due, and returns when it is due again without a change, the zero Time for never.
	Plan(c *Cluster, now time.Time) (wake time.Time, err error)
	// Read takes a reading of the Counters of all endpoints. Plan follows.
	Read(c *Cluster, now time.Time)
	// Decision returns the last decision about a pool, abi.PoolCluster or abi.PoolLocal; its Endpoints are parallel to those of
	// c.
	Decision(c *Cluster, pool uint8) (Decision, error)
	// Restart makes the engine continue as a new process with the checkpoint of the old one. Plan follows.
	Restart(now time.Time) error
}

// Decision is a decision about a pool.
type Decision struct {
	Origin    Origin
	Endpoints []Share
	Balance   uint8     // abi.Balance…
	Requeue   time.Time // when the plugin wants to decide again, the zero Time for only on a change or after a failure
	Calls     int       // of the plugin for this pool so far
	Err       error     // of the plugin
}

// Origin is who has decided.
type Origin uint8

// The origins of a decision.
const (
	FromPlugin   Origin = iota
	FromLastGood        // the last good decision, because the plugin fails
	FromDefault         // the default rules: no endpoint may get connections, or the plugin fails without a good decision before
)

// Share is the decision about an endpoint.
type Share struct {
	Weight       uint16
	Reason       string
	Draining     bool      // kept without new connections
	ResetAt      time.Time // its established connections are reset then, the zero Time for never
	ShedPermille uint16    // part of its established connections that is reset in a minute
}
