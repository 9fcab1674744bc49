package api

// Services are the Services that a node serves.
type Services struct {
	Node     string            `json:"node"`
	Services []ServiceOverview `json:"services"` // sorted by namespace and name
}

// ServiceOverview is a Service in a few numbers.
type ServiceOverview struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Policy    string   `json:"policy,omitempty"`
	Frontends []string `json:"frontends"` // ClusterIPs first
	Endpoints int      `json:"endpoints"` // with weight, in any frontend
	Draining  int      `json:"draining"`  // endpoints
	Omitted   int      `json:"omitted"`   // frontends, endpoints and source ranges that limits or conflicts leave out
	Failing   bool     `json:"failing"`   // its policy
	Refused   bool     `json:"refused"`   // an annotation that chooses its policy or sets settings
}
