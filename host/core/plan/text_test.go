package plan_test

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// samePlans compares field by field with another comparison than the package's own.
var samePlans = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func key(t testing.TB, s string) plan.Key {
	t.Helper()
	k, err := plan.ParseKey(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// shopPlan has one of everything that the text form can show.
func shopPlan(t testing.TB) *plan.Plan {
	p := &plan.Plan{
		Global: plan.Global{
			NodePortAddrs:  []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:192::1")},
			LocalhostAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
			PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			PodInterfaces:  []string{"cali*", "cni0"},
			ServiceCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
			MasqueradeMark: 0x4000,
		},
		Frontends: map[plan.Key]*plan.Frontend{},
	}
	deadline := time.Date(2026, 1, 31, 10, 0, 0, 250e6, time.UTC).UnixMilli()
	web := plan.Pool{Endpoints: []plan.Endpoint{
		{Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 2},
		{Addr: netip.MustParseAddrPort("10.244.1.16:8080"), Weight: 5},
		{Addr: netip.MustParseAddrPort("10.244.2.7:8080"), Weight: 0, Phase: plan.Draining, Deadline: deadline},
	}}
	local := plan.Pool{Endpoints: web.Endpoints[:1:1]}
	add := func(s, ns, name, port string, f plan.Frontend) {
		f.Key = key(t, s)
		f.Owner = model.PortName{Service: model.Name{Namespace: ns, Name: name}, Port: port, Protocol: f.Key.Protocol}
		p.Frontends[f.Key] = &f
	}
	add("10.96.0.10:80/TCP", "shop", "web", "http", plan.Frontend{
		Pool: web, Masquerade: plan.MasqueradeOutside, Affinity: 3 * time.Hour})
	add("203.0.113.7:80/TCP", "shop", "web", "http", plan.Frontend{
		RetryRefused: true, LongLived: true, Kind: plan.LoadBalancer, Pool: web, Outside: &plan.Pool{Verdict: plan.Drop}, Masquerade: plan.MasqueradeFromNode, Affinity: 3 * time.Hour,
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.7/32")}})
	add("*4:30080/TCP", "shop", "web", "http", plan.Frontend{
		Kind: plan.NodePort, Pool: web, Outside: &local, Masquerade: plan.MasqueradeFromNode, Affinity: 3 * time.Hour})
	add("10.96.0.11:53/UDP", "kube-system", "dns", "", plan.Frontend{
		Pool: plan.Pool{Verdict: plan.Reject}, Balance: plan.LeastConnections})
	add("[fd00:10:96::b]:53/UDP", "kube-system", "dns", "", plan.Frontend{
		Outcomes: true, Pool: plan.Pool{Endpoints: []plan.Endpoint{{Addr: netip.MustParseAddrPort("[fd00:10:244::1]:53"), Weight: 1}}}})
	return p
}

var update = flag.Bool("update", false, "rewrite the golden files")

func TestFormatMatchesGolden(t *testing.T) {
	matchGolden(t, "shop.txt", plan.Format(shopPlan(t)))
}

func TestJSONMatchesGolden(t *testing.T) {
	got, err := json.MarshalIndent(shopPlan(t), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	matchGolden(t, "shop.json", string(got)+"\n")
}

func matchGolden(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("-update rewrites %s:\n%s", golden, d)
	}
}

func TestPlansRoundTripInAllForms(t *testing.T) {
	check := func(t *testing.T, p *plan.Plan) {
		t.Helper()
		text := plan.Format(p)
		got, err := plan.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if d := cmp.Diff(p, got, samePlans); d != "" || !got.Equal(p) {
			t.Fatalf("text: %s\n%s", d, text)
		}
		if again := plan.Format(got); again != text {
			t.Fatal(cmp.Diff(text, again))
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back plan.Plan
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if d := cmp.Diff(p, &back, samePlans); d != "" || !back.Equal(p) {
			t.Fatalf("JSON: %s\n%s", d, data)
		}
	}
	check(t, &plan.Plan{})
	check(t, shopPlan(t))
	for seed := range uint64(300) {
		g := testgen.NewPlans(seed, testgen.PlanOptions{})
		p := g.Plan()
		for range 5 {
			if err := plan.Validate(p); err != nil {
				t.Fatalf("seed %d: the generator made a bad plan: %v\n%s", seed, err, plan.Format(p))
			}
			check(t, p)
			p = g.Next(p)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestParseAcceptsHandwrittenPlans(t *testing.T) {
	p, err := plan.Parse(`
# comments, no shares, no totals, any indentation
global
masquerade-mark 16384   # 1 << 14
service shop/web
port - 10.96.0.10:80/TCP ClusterIP
forward
10.244.1.5:8080 weight 2
10.244.1.6:8080 weight 0 draining until 2026-01-31T11:00:00+01:00
`)
	if err != nil {
		t.Fatal(err)
	}
	f := p.Frontends[key(t, "10.96.0.10:80/TCP")]
	if f == nil || len(f.Pool.Endpoints) != 2 || f.Owner.Port != "" || f.Balance != plan.Random || f.Masquerade != plan.MasqueradeNever {
		t.Fatalf("got %+v", f)
	}
	if got, want := f.Pool.Endpoints[1].Deadline, time.Date(2026, 1, 31, 10, 0, 0, 0, time.UTC).UnixMilli(); got != want {
		t.Errorf("deadline %d, want %d", got, want)
	}
}

func TestParseErrorsNameLineAndField(t *testing.T) {
	const head = "global\n  masquerade-mark 0x4000\nservice shop/web\n" // 3 lines
	const port = "  port http 10.96.0.10:80/TCP ClusterIP masquerade=outside balance=random\n"
	const endpoint = "      10.244.1.5:8080 weight 2 100.0 % active\n"
	for _, c := range []struct{ name, text, want string }{
		{"unknown word", "hello\n", `line 1: "hello"`},
		{"global twice", "global\nglobal\n", "line 2: global: must occur once"},
		{"field outside global", "masquerade-mark 1\n", "line 1: masquerade-mark: must follow global"},
		{"field twice", "global\nmasquerade-mark 1\nmasquerade-mark 1\n", "line 3: masquerade-mark: duplicate"},
		{"bad address", "global\nnode-port-addresses 1.2.3\n", "line 2: node-port-addresses:"},
		{"empty list", "global\npod-sources\n", "line 2: pod-sources: want at least one"},
		{"two bits", "global\nmasquerade-mark 3\n", "line 1: global: masquerade-mark: 0x3"},
		{"host bits", "global\nmasquerade-mark 1\npod-sources 10.0.0.1/8\n", "line 1: global: pod-sources: 10.0.0.1/8: host bits"},
		{"bad service", "service web\n", `line 1: service "web"`},
		{"port without service", port, "line 1: port: must follow a service"},
		{"bad key", head + "port http 10.96.0.10/TCP ClusterIP\n", `line 4: key "10.96.0.10/TCP"`},
		{"bad protocol", head + "port http 10.96.0.10:80/ICMP ClusterIP\n", `line 4: key "10.96.0.10:80/ICMP": protocol "ICMP"`},
		{"spelled-out NodePort", head + "port http 0.0.0.0:80/TCP NodePort\n", "line 4: key \"0.0.0.0:80/TCP\": a NodePort is written *4:port"},
		{"bad kind", head + "port http 10.96.0.10:80/TCP Headless\n", `line 4: 10.96.0.10:80/TCP: kind "Headless"`},
		{"bad setting", head + "port http 10.96.0.10:80/TCP ClusterIP colour=red\n", `line 4: 10.96.0.10:80/TCP: "colour=red"`},
		{"setting twice", head + "port http 10.96.0.10:80/TCP ClusterIP balance=random balance=random\n", "balance: duplicate"},
		{"no verdict", head + port, "10.96.0.10:80/TCP on line 4: no verdict"},
		{"key twice", head + port + "reject\n" + port, "line 6: 10.96.0.10:80/TCP: duplicate of line 4"},
		{"two pools", head + port + "reject\ndrop\n", "line 6: drop: 10.96.0.10:80/TCP already has a pool"},
		{"endpoint before verdict", head + port + endpoint, "line 5: endpoint 10.244.1.5:8080: must follow a verdict"},
		{"weight too big", head + port + "forward\n10.244.1.5:8080 weight 65536\n", `line 6: endpoint 10.244.1.5:8080: weight "65536"`},
		{"bad phase", head + port + "forward\n10.244.1.5:8080 weight 1 gone\n", `line 6: endpoint 10.244.1.5:8080: phase "gone"`},
		{"bad deadline", head + port + "forward\n10.244.1.5:8080 weight 1 active until noon\n", `line 6: endpoint 10.244.1.5:8080: until "noon"`},
		{"deadline too fine", head + port + "forward\n10.244.1.5:8080 weight 1 active until 2026-01-31T10:00:00.0001Z\n", "line 6: endpoint 10.244.1.5:8080: until"},
		{"more words", head + port + "forward\n10.244.1.5:8080 weight 1 active today\n", `line 6: endpoint 10.244.1.5:8080: unexpected "today"`},
		{"wrong share", head + port + "forward\n10.244.1.5:8080 weight 2 50.0 % active\n", `on line 6: share "50.0", want 100.0 %`},
		{"wrong total", head + port + "forward 1 endpoint, total 3\n" + endpoint, `on line 5: "1 endpoint, total 3", want "1 endpoint, total 2"`},
		{"endpoints not sorted", head + port + "forward\n10.244.1.6:80 weight 1\n10.244.1.5:80 weight 1\n", "line 4: shop/web:http 10.96.0.10:80/TCP: pool: endpoint 10.244.1.5:80 after 10.244.1.6:80"},
		{"wrong family", head + port + "forward\n[fd00::1]:80 weight 1\n", "line 4: shop/web:http 10.96.0.10:80/TCP: pool: endpoint [fd00::1]:80: address: not IPv4"},
		{"forward without weight", head + port + "forward\n", "line 4: shop/web:http 10.96.0.10:80/TCP: pool: verdict: forward with a total weight of 0"},
		{"kind and key disagree", head + "port http *4:80/TCP ClusterIP\nreject\n", "line 4: shop/web:http *4:80/TCP: kind: ClusterIP"},
		{"no mark", "service shop/web\n" + port + "reject\n", "line 1: global: masquerade-mark: 0x0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := plan.Parse(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant … %s …", err, c.want)
			}
		})
	}
}

func TestUnmarshalJSONRejectsInvalidPlans(t *testing.T) {
	const frontend = `"namespace":"shop","service":"web","family":"IPv4","address":"10.96.0.10","port":80,"protocol":"TCP","pool":{"verdict":"reject"}`
	for _, c := range []struct{ name, text, want string }{
		{"unknown field", `{"global":{"colour":1}}`, `"colour"`},
		{"kind missing", `{"global":{"masqueradeMark":1},"frontends":[{` + frontend + `}]}`, "frontends[0]: kind: missing"},
		{"kind unknown", `{"global":{"masqueradeMark":1},"frontends":[{"kind":"Headless",` + frontend + `}]}`, `kind "Headless"`},
		{"address on a NodePort", `{"global":{"masqueradeMark":1},"frontends":[{"kind":"NodePort",` + frontend + `}]}`, "frontends[0]: address"},
		{"twice", `{"global":{"masqueradeMark":1},"frontends":[{"kind":"ClusterIP",` + frontend + `},{"kind":"ClusterIP",` + frontend + `}]}`, "frontends[1]: 10.96.0.10:80/TCP: duplicate"},
		{"invalid", `{"frontends":[{"kind":"ClusterIP",` + frontend + `}]}`, "masquerade-mark: 0x0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kept := plan.Plan{Global: plan.Global{MasqueradeMark: 2}}
			err := json.Unmarshal([]byte(c.text), &kept)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant … %s …", err, c.want)
			}
			if kept.Global.MasqueradeMark != 2 {
				t.Error("the plan changed")
			}
		})
	}
}

func TestDegradationJSONRoundTrip(t *testing.T) {
	owner := model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP}
	want := []plan.Degradation{{Frontend: key(t, "*6:30080/TCP"), Owner: owner, Wanted: "a", Got: "b", Why: "c"}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const text = `[{"frontend":"*6:30080/TCP","namespace":"shop","service":"web","portName":"http","wanted":"a","got":"b","why":"c"}]`
	if string(data) != text {
		t.Errorf("got %s", data)
	}
	var got []plan.Degradation
	if err := json.Unmarshal(data, &got); err != nil || got[0] != want[0] {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestFormatDiffContainsChangesOnly(t *testing.T) {
	p := shopPlan(t)
	if d := plan.FormatDiff(p, shopPlan(t)); d != "" {
		t.Errorf("equal plans differ:\n%s", d)
	}
	q := shopPlan(t)
	delete(q.Frontends, key(t, "10.96.0.11:53/UDP"))
	f := *q.Frontends[key(t, "203.0.113.7:80/TCP")]
	f.Outside = &plan.Pool{Verdict: plan.Reject}
	q.Frontends[f.Key] = &f
	const want = `- service kube-system/dns
-   port -  10.96.0.11:53/UDP  ClusterIP  masquerade=never balance=least-connections
-     reject
  service shop/web
    port http  203.0.113.7:80/TCP  LoadBalancer  masquerade=from-node affinity=3h0m0s balance=random refused=retried flows=offloaded
      source-ranges 198.51.100.0/24 203.0.113.7/32
      forward 3 endpoints, total 7
        10.244.1.5:8080   weight 2   28.6 %  active
        10.244.1.16:8080  weight 5   71.4 %  active
        10.244.2.7:8080   weight 0    0.0 %  draining until 2026-01-31T10:00:00.250Z
-     outside drop
+     outside reject
`
	if d := cmp.Diff(want, plan.FormatDiff(p, q)); d != "" {
		t.Error(d)
	}
}

// Nothing makes the parser panic, and what it takes has one text.
func FuzzParse(f *testing.F) {
	f.Add(plan.Format(shopPlan(f)))
	for seed := range uint64(10) {
		f.Add(plan.Format(testgen.NewPlans(seed, testgen.PlanOptions{Ports: 3, Endpoints: 3}).Plan()))
	}
	f.Add("global\nmasquerade-mark 1\nservice a/b\nport - *6:1/SCTP NodePort affinity=1h0.5s\ndrop\noutside forward\n[::1]:1 weight 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := plan.Parse(text)
		if err != nil {
			return
		}
		if err := plan.Validate(p); err != nil {
			t.Fatalf("accepted, but: %v", err)
		}
		canonical := plan.Format(p)
		q, err := plan.Parse(canonical)
		if err != nil {
			t.Fatalf("%v\n%s", err, canonical)
		}
		if !p.Equal(q) || plan.Format(q) != canonical {
			t.Fatalf("not the same again:\n%s", plan.FormatDiff(p, q))
		}
	})
}

// The same for JSON.
func FuzzJSON(f *testing.F) {
	data, err := json.Marshal(shopPlan(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var p plan.Plan
		if json.Unmarshal(data, &p) != nil {
			return
		}
		out, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		var q plan.Plan
		if err := json.Unmarshal(out, &q); err != nil || !p.Equal(&q) {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}
