package api

// Traced is the result of tracing a flow.
type Traced struct {
	Verdict string `json:"verdict"` // DNAT, REJECT, DROP or NONE
	// Service port that took the connection; empty when none did.
	Service   string           `json:"service"`
	Endpoints []TracedEndpoint `json:"endpoints"` // that the connection may reach
	Why       string           `json:"why"`
	// Flow is the connection, with names replaced by addresses; only in the answer of a running sluice, as are the following.
	Flow *TracedFlow `json:"flow,omitempty"`
	Node string      `json:"node,omitempty"`
	// Configuration is the hash of the configuration that is in force there.
	Configuration string `json:"configuration,omitempty"`
}

// TracedFlow is the connection of a Traced.
type TracedFlow struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Protocol string `json:"protocol"`
}

// TracedEndpoint is an endpoint that a connection may reach.
type TracedEndpoint struct {
	Address    string  `json:"address"`
	Refused    bool    `json:"refused,omitempty"` // there is no endpoint: the connections are refused; Why says what for
	Weight     uint16  `json:"weight"`
	Share      float64 `json:"share"` // of new connections, 0 to 1
	Masquerade bool    `json:"masquerade"`
}
