package statuspage

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// pageSize is the number of Services on a page. maxQuery bounds a search text, in bytes, maxOptions the choices of a filter.
const (
	pageSize   = 50
	maxQuery   = 200
	maxOptions = 500
)

// index is the Services of the node, ready to be searched.
type index struct {
	services   []api.ServiceOverview
	text       []string // of each Service, in lower case
	namespaces []string
	policies   []policyCount
}

// policyCount is a policy and the number of Services that it decides about.
type policyCount struct {
	Name     string // "": the default rules
	Services int
	Failing  int
}

func newIndex(x *api.Services) *index {
	out := &index{services: x.Services, text: make([]string, len(x.Services))}
	count := map[string]*policyCount{}
	for i := range x.Services {
		s := &x.Services[i]
		out.text[i] = strings.ToLower(s.Namespace + "/" + s.Name + " " + s.Policy + " " + strings.Join(s.Frontends, " "))
		if n := len(out.namespaces); n == 0 || out.namespaces[n-1] != s.Namespace {
			out.namespaces = append(out.namespaces, s.Namespace)
		}
		c := count[s.Policy]
		if c == nil {
			c = &policyCount{Name: s.Policy}
			count[s.Policy] = c
		}
		c.Services++
		if s.Failing {
			c.Failing++
		}
	}
	for _, c := range count {
		out.policies = append(out.policies, *c)
	}
	slices.SortFunc(out.policies, func(a, b policyCount) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(out.namespaces)
	out.namespaces = slices.Compact(out.namespaces)
	return out
}

// States that the list of Services can be filtered by.
const (
	stateFailing  = "failing"
	stateDraining = "draining"
	stateEmpty    = "empty"
	stateOmitted  = "omitted"
)

// listQuery is what a list of Services shows.
type listQuery struct {
	Text, Namespace, Policy, State, Sort string
	Descending                           bool
	Page                                 int // from 1
}

func parseListQuery(v url.Values) listQuery {
	q := listQuery{Text: v.Get("q"), Namespace: v.Get("namespace"), Policy: v.Get("policy"), State: v.Get("state"), Sort: v.Get("sort"), Descending: v.Get("order") == "desc", Page: 1}
	if len(q.Text) > maxQuery {
		q.Text = strings.ToValidUTF8(q.Text[:maxQuery], "")
	}
	if n, err := strconv.Atoi(v.Get("page")); err == nil && n > 1 {
		q.Page = n
	}
	return q
}

// values returns the query of a URL.
func (q listQuery) values() url.Values {
	v := url.Values{}
	set := func(key, value string) {
		if value != "" {
			v.Set(key, value)
		}
	}
	set("q", q.Text)
	set("namespace", q.Namespace)
	set("policy", q.Policy)
	set("state", q.State)
	set("sort", q.Sort)
	if q.Descending {
		v.Set("order", "desc")
	}
	if q.Page > 1 {
		v.Set("page", strconv.Itoa(q.Page))
	}
	return v
}

// noPolicy is the value of the policy filter for Services without a policy.
const noPolicy = "(none)"

func (q *listQuery) matches(s *api.ServiceOverview, text string, words []string) bool {
	if q.Namespace != "" && s.Namespace != q.Namespace {
		return false
	}
	if q.Policy == noPolicy && s.Policy != "" || q.Policy != "" && q.Policy != noPolicy && s.Policy != q.Policy {
		return false
	}
	switch q.State {
	case stateFailing:
		if !s.Failing {
			return false
		}
	case stateDraining:
		if s.Draining == 0 {
			return false
		}
	case stateEmpty:
		if s.Endpoints > 0 {
			return false
		}
	case stateOmitted:
		if s.Omitted == 0 {
			return false
		}
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// find returns the Services of a page, and the number of those on all pages. It changes Page to one that exists.
func (x *index) find(q *listQuery) (page []*api.ServiceOverview, total int) {
	words := strings.Fields(strings.ToLower(q.Text))
	var found []*api.ServiceOverview // sorted by name
	for i := range x.services {
		if s := &x.services[i]; q.matches(s, x.text[i], words) {
			found = append(found, s)
		}
	}
	if by := comparison(q.Sort); by != nil {
		slices.SortStableFunc(found, func(a, b *api.ServiceOverview) int {
			if q.Descending {
				a, b = b, a
			}
			return by(a, b)
		})
	} else if q.Descending {
		slices.Reverse(found)
	}
	total = len(found)
	q.Page = max(1, min(q.Page, (total+pageSize-1)/pageSize))
	begin := (q.Page - 1) * pageSize
	return found[begin:min(begin+pageSize, total)], total
}

// comparison returns the order of a column; nil: by name.
func comparison(column string) func(a, b *api.ServiceOverview) int {
	switch column {
	case "policy":
		return func(a, b *api.ServiceOverview) int { return cmp.Compare(a.Policy, b.Policy) }
	case "endpoints":
		return func(a, b *api.ServiceOverview) int { return cmp.Compare(a.Endpoints, b.Endpoints) }
	case "draining":
		return func(a, b *api.ServiceOverview) int { return cmp.Compare(a.Draining, b.Draining) }
	}
	return nil
}
