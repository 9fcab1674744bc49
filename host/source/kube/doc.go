// Package kube watches cluster state at an API server. The model value is the only copy of an object that it keeps: the
// one that it emitted and that the planner's snapshot refers to. Only differences are emitted.
package kube
