package statuspage

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

func TestServicesAreFoundSortedAndPaged(t *testing.T) {
	all := &api.Services{}
	for i := range 120 {
		all.Services = append(all.Services, api.ServiceOverview{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Frontends: []string{fmt.Sprintf("10.96.0.%d:80/TCP", i)}, Endpoints: i % 7, Draining: i % 2})
	}
	all.Services[7].Policy, all.Services[7].Failing = "gentle", true
	x := newIndex(all)
	for _, c := range []struct {
		query       string
		first       string // of the page
		shown, page int
		total       int
	}{
		{"", "web-000", 50, 1, 120},
		{"page=3", "web-100", 20, 3, 120},
		{"page=99", "web-100", 20, 3, 120},
		{"page=-1", "web-000", 50, 1, 120},
		{"order=desc", "web-119", 50, 1, 120},
		{"sort=endpoints&order=desc", "web-006", 50, 1, 120},
		{"sort=nothing", "web-000", 50, 1, 120},
		{"q=WEB-11+10.96", "web-110", 10, 1, 10},
		{"q=gentle", "web-007", 1, 1, 1},
		{"policy=gentle", "web-007", 1, 1, 1},
		{"policy=%28none%29", "web-000", 50, 1, 119},
		{"state=failing", "web-007", 1, 1, 1},
		{"state=draining", "web-001", 50, 1, 60},
		{"state=empty&namespace=shop", "web-000", 18, 1, 18},
		{"namespace=other", "", 0, 1, 0},
	} {
		v, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		q := parseListQuery(v)
		page, total := x.find(&q)
		first := ""
		if len(page) > 0 {
			first = page[0].Name
		}
		if first != c.first || len(page) != c.shown || q.Page != c.page || total != c.total {
			t.Errorf("%s: %s, %d shown, page %d, %d in all", c.query, first, len(page), q.Page, total)
		}
	}
}

func TestHistoryIsBoundedAndCountsRepetitions(t *testing.T) {
	h := NewHistory()
	for i := range 2 * maxEntries {
		h.add(Entry{Kind: KindChange, Subject: fmt.Sprint(i)})
	}
	for range 3 {
		h.add(Entry{Kind: KindFailure, Text: "no"})
	}
	all := h.Last("")
	if len(all) != maxEntries || all[0].Times != 3 || all[1].Subject != fmt.Sprint(2*maxEntries-1) || all[maxEntries-1].Subject != fmt.Sprint(maxEntries+1) {
		t.Errorf("%d entries: %+v … %+v", len(all), all[:2], all[len(all)-1])
	}
	if failures := h.Last(KindFailure); len(failures) != 1 {
		t.Errorf("%+v", failures)
	}
}
