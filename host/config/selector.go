package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/spelling"
)

// selectorEntry is a label selector, as in Kubernetes.
type selectorEntry struct {
	MatchLabels      map[string]string  `json:"matchLabels"`
	MatchExpressions []requirementEntry `json:"matchExpressions"`
}

type requirementEntry struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

func (e *selectorEntry) empty() bool { return len(e.MatchLabels)+len(e.MatchExpressions) == 0 }

// selector parses a label selector.
func (p *parser) selector(path string, e *selectorEntry) (out policy.Selector) {
	for _, key := range slices.Sorted(maps.Keys(e.MatchLabels)) {
		value := e.MatchLabels[key]
		at := fmt.Sprintf("%s.matchLabels[%s]", path, key)
		p.labelKey(at, key)
		p.labelValue(at, value)
		out = append(out, policy.Requirement{Key: key, Op: policy.In, Values: []string{value}})
	}
	for j, x := range e.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, j)
		p.labelKey(at+".key", x.Key)
		for k, v := range x.Values {
			p.labelValue(fmt.Sprintf("%s.values[%d]", at, k), v)
		}
		op, needs, ok := operator(x.Operator)
		switch {
		case !ok:
			p.errorf(at+".operator", "%q: must be In, NotIn, Exists or DoesNotExist%s", x.Operator,
				spelling.DidYouMean(x.Operator, []string{"In", "NotIn", "Exists", "DoesNotExist"}))
		case needs && len(x.Values) == 0:
			p.errorf(at+".values", "required with operator %s", x.Operator)
		case !needs && len(x.Values) > 0:
			p.errorf(at+".values", "must be empty with operator %s", x.Operator)
		}
		out = append(out, policy.Requirement{Key: x.Key, Op: op, Values: x.Values})
	}
	return out
}

func operator(s string) (op policy.Op, values, ok bool) {
	switch s {
	case "In":
		return policy.In, true, true
	case "NotIn":
		return policy.NotIn, true, true
	case "Exists":
		return policy.Exists, false, true
	case "DoesNotExist":
		return policy.DoesNotExist, false, true
	}
	return 0, false, false
}

// effectiveSelector converts matchLabels to equivalent matchExpressions.
func effectiveSelector(s policy.Selector) (e selectorEntry) {
	for _, r := range s {
		op := [...]string{policy.In: "In", policy.NotIn: "NotIn", policy.Exists: "Exists", policy.DoesNotExist: "DoesNotExist"}[r.Op]
		e.MatchExpressions = append(e.MatchExpressions, requirementEntry{r.Key, op, r.Values})
	}
	return e
}
