package planner

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestExternalIPsFollowTheSetting: at once when it changes, in both directions, and for the Service that gets the address then.
func TestExternalIPsFollowTheSetting(t *testing.T) {
	web, db := model.Name{Namespace: "shop", Name: "web"}, model.Name{Namespace: "shop", Name: "db"}
	external := netip.MustParseAddr("198.51.100.1")
	service := func(n model.Name, ip string, created int64) model.Change {
		return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{Name: n, Created: created, ClusterIPs: addrs(ip), ExternalIPs: []netip.Addr{external}, ExternalLocal: true,
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80, NodePort: uint16(30000 + created)}}}}
	}
	p := New(Settings{Node: "n0"}, nativePlugins)
	p.Apply([]model.Change{service(web, "10.96.0.1", 1), service(db, "10.96.0.2", 2), {Kind: model.SliceKind, Name: web, Slice: slice(web, 1)},
		nodeChange(&model.Node{Name: "n0", Addresses: addrs("10.0.0.1")}), {Kind: model.Synced}})
	now := time.Unix(1000, 0)
	warnings := ""
	want := func(when, owner string, frontends int, warning string) {
		t.Helper()
		now = now.Add(time.Second)
		r := p.PlanNow(now)
		warnings = strings.Join(r.Warnings, "\n")
		f := p.Current().Frontends[plan.Key{Addr: external, Port: 80, Protocol: model.TCP}]
		if got := fmt.Sprint(f != nil && f.Owner.Service.String() == owner); (owner != "") != (f != nil) || owner != "" && got != "true" || len(p.Current().Frontends) != frontends {
			t.Errorf("%s: %v of %d frontends, want one of %s, %d", when, f, len(p.Current().Frontends), owner, frontends)
		}
		if warning == "" && strings.Contains(warnings, "external IPs") || !strings.Contains(warnings, warning) {
			t.Errorf("%s: warnings %q, want %q", when, warnings, warning)
		}
	}
	set := func(e ExternalIPs) { p.Configure(Settings{Node: "n0", Planning: Planning{ExternalIPs: e}}) }
	want("undecided", "shop/web", 5, "from 1.40 on")
	p.Apply([]model.Change{service(db, "10.96.0.2", 2)})
	want("undecided, later", "shop/web", 5, "")
	set(IgnoreExternalIPs)
	want("ignored", "", 4, "not served")
	if _, found := p.IgnoredExternalIP(external); !found {
		t.Error("nothing says that the address is ignored")
	}
	p.Apply([]model.Change{service(db, "10.96.0.2", 0)}) // older than the other one now
	want("ignored, later", "", 4, "")
	set(AllowExternalIPs)
	want("allowed", "shop/db", 5, "")
	if _, found := p.IgnoredExternalIP(external); found {
		t.Error("the address is said to be ignored")
	}
	set(UndecidedExternalIPs)
	want("undecided again", "shop/db", 5, "from 1.40 on")
}
