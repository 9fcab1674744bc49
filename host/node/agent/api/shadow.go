package api

// Shadow is how the shadow of a Service's policy compares with what is in force.
type Shadow struct {
	Plugins []string `json:"plugins,omitempty"` // not in lists
	// Divergence is the mean share of new connections that would go to other endpoints, 0 to 1, over the pools that are compared;
	// nil: none is.
	Divergence *float64 `json:"divergence,omitempty"`
	Failing    bool     `json:"failing,omitempty"`
	Pending    bool     `json:"pending,omitempty"`
}

// PoolShadow is a Shadow for one pool.
type PoolShadow struct {
	Divergence *float64 `json:"divergence,omitempty"`
	Error      string   `json:"error,omitempty"`
	Pending    *Pending `json:"pending,omitempty"`
}

// EndpointShadow is what the shadow decides about an endpoint.
type EndpointShadow struct {
	Weight uint16  `json:"weight"`
	Share  float64 `json:"share"` // of new connections, 0 to 1
	Steps  []Step  `json:"steps"`
}

// ServiceShadow is a Shadow in a list of Services.
type ServiceShadow struct {
	Service string `json:"service"`
	Policy  string `json:"policy"`
	Shadow
}
