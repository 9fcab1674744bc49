package model

import "slices"

// Namespace is what a policy may know of the namespace of a Service: the labels that its plugins declare.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// LabelsRead is which labels of a kind of objects have been read. The zero value: all.
type LabelsRead struct {
	OnDemand bool     // only those of Names, which policies see
	Names    []string // sorted
}

// newLabelsRead returns that labels have been read, and no others.
func newLabelsRead(names []string) LabelsRead {
	if len(names) == 0 {
		names = nil
	}
	return LabelsRead{true, names}
}

// Has reports whether a label has been read.
func (r LabelsRead) Has(name string) bool {
	_, found := slices.BinarySearch(r.Names, name)
	return found || !r.OnDemand
}
