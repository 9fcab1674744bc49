package api

import (
	"time"
)

// Unknown is the duration of an Input that asks for numbers which nothing has counted.
const Unknown = "unknown"

// Input is what a plugin saw when it gave its last answer. Fields that it did not ask for are absent.
type Input struct {
	Plugin   string    `json:"plugin"`
	At       time.Time `json:"at"` // of the answer
	Changed  bool      `json:"changed,omitempty"`
	Settings string    `json:"settings,omitempty"`
	// NodeIndex is the position of this node among NodeCount that are ready.
	NodeIndex *uint32      `json:"nodeIndex,omitempty"`
	NodeCount *uint32      `json:"nodeCount,omitempty"`
	Zones     []InputZone  `json:"zones,omitempty"`
	Service   []InputValue `json:"service,omitempty"` // declared labels and annotations
	// ConnectionsAge is how old the numbers of connections were, OutcomesWindow for how long before the answer outcomes were
	// counted: durations, or Unknown.
	ConnectionsAge string          `json:"connectionsAge,omitempty"`
	OutcomesWindow string          `json:"outcomesWindow,omitempty"`
	Endpoints      []InputEndpoint `json:"endpoints"`
	Omitted        int             `json:"omitted,omitempty"` // endpoints
}

// InputZone is a zone as a plugin saw it. Nodes and MilliCPU are absent if it did not ask for them.
type InputZone struct {
	Name     string  `json:"name"`
	Ready    uint32  `json:"ready"`
	Serving  uint32  `json:"serving"`
	Total    uint32  `json:"total"`
	Nodes    *uint32 `json:"nodes,omitempty"`
	MilliCPU *uint64 `json:"milliCPU,omitempty"`
}

// InputValue is the value of a declared key; nil if the object does not have it.
type InputValue struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
}

// InputEndpoint is an endpoint as a plugin saw it.
type InputEndpoint struct {
	Address          string         `json:"address"`
	Conditions       []string       `json:"conditions"`
	Capacity         float64        `json:"capacity"` // 1 is that of an ordinary endpoint; from the plugins before, or the default rules
	Share            float64        `json:"share"`    // for each unit of capacity
	Group            uint16         `json:"group,omitempty"`
	ReadySince       *time.Time     `json:"readySince,omitempty"`
	TerminatingSince *time.Time     `json:"terminatingSince,omitempty"`
	Pod              string         `json:"pod,omitempty"`
	Connections      *uint32        `json:"connections,omitempty"`
	Outcomes         *InputOutcomes `json:"outcomes,omitempty"`
	Values           []InputValue   `json:"values,omitempty"`
}

// InputOutcomes are the outcomes of connections from this node, in the window and since the node counts them.
type InputOutcomes struct {
	InputCounts
	Total InputCounts `json:"total"`
	Since time.Time   `json:"since"`
}

// InputCounts are numbers of connections.
type InputCounts struct {
	Attempts   uint64 `json:"attempts"`
	Answered   uint64 `json:"answered"`
	Refused    uint64 `json:"refused"`
	Unanswered uint64 `json:"unanswered"`
}
