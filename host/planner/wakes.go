package planner

import (
	"cmp"

	"github.com/sluice-proxy/sluice/host/model"
)

// wake is when a Service is to be looked at again.
type wake struct {
	at   int64
	name model.Name
}

// wakes is a heap by time, then name.
type wakes []wake

func (w wakes) Len() int { return len(w) }
func (w wakes) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(w[i].at, w[j].at), w[i].name.Compare(w[j].name)) < 0
}
func (w wakes) Swap(i, j int) { w[i], w[j] = w[j], w[i] }
func (w *wakes) Push(x any)   { *w = append(*w, x.(wake)) }
func (w *wakes) Pop() any {
	old := *w
	x := old[len(old)-1]
	*w = old[:len(old)-1]
	return x
}
