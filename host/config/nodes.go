package config

import (
	"math"

	"github.com/sluice-proxy/sluice/host/policy"
)

// nodesEntry restricts a binding to some of the nodes.
type nodesEntry struct {
	Percent  *float64       `json:"percent"`
	Selector *selectorEntry `json:"selector"`
}

// nodes parses bindings[].nodes; nil is every node.
func (p *parser) nodes(path string, e *nodesEntry) (out policy.Nodes) {
	if e == nil {
		return out
	}
	if e.Percent == nil && e.Selector == nil {
		p.errorf(path, "percent or selector required")
	}
	if n := e.Percent; n != nil {
		permille := math.Round(*n * 10)
		if !(*n >= 0.1 && *n <= 100) || math.Abs(permille-*n*10) > 1e-6 {
			p.errorf(path+".percent", "%v is not a number from 0.1 to 100 with at most one decimal", *n)
			return out
		}
		out.Permille = int(permille)
	}
	if e.Selector != nil {
		if out.Selector = p.selector(path+".selector", e.Selector); len(out.Selector) == 0 {
			p.errorf(path+".selector", "matchLabels or matchExpressions required")
		}
	}
	return out
}

func effectiveNodes(n policy.Nodes) *nodesEntry {
	if n.Permille == 0 && n.Selector == nil {
		return nil
	}
	e := &nodesEntry{}
	if n.Permille != 0 {
		percent := float64(n.Permille) / 10
		e.Percent = &percent
	}
	if n.Selector != nil {
		s := effectiveSelector(n.Selector)
		e.Selector = &s
	}
	return e
}
