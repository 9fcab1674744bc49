package planner

import "github.com/sluice-proxy/sluice/host/model"

// ServiceError is what is wrong with the policy of a Service.
type ServiceError struct {
	Service model.Name
	Err     error // names the Service too
}

// Error is that of Err.
func (e *ServiceError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ServiceError) Unwrap() error { return e.Err }
