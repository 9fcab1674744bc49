// Package v1alpha1 has the kinds of sluice.dev/v1alpha1: policies of Services as Kubernetes objects. It has types only, so
// clients can import it without the proxy.
//
// The CustomResourceDefinitions in deploy/kustomize/crds and zz_generated.deepcopy.go are generated from it by `make generate`.
//
// +kubebuilder:object:generate=true
// +groupName=sluice.dev
package v1alpha1
