package nftables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// crowd is clients with session affinity, and the endpoint of each.
type crowd struct {
	*testEnv
	next     [2]netip.Addr // by family: of the next new client
	to       [2]netip.AddrPort
	endpoint map[netip.Addr]string
	moved    int
}

const clientsPerFamily = 20

// newCrowd leads the addresses of many clients to the client host.
func (d *testEnv) newCrowd(to ...string) *crowd {
	d.Helper()
	c := &crowd{testEnv: d, endpoint: map[netip.Addr]string{}}
	for i, p := range []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16"), netip.MustParsePrefix("2001:db8:18::/64")} {
		if err := d.lab.Route(p, d.client); err != nil {
			d.Fatal(err)
		}
		c.next[i], c.to[i] = p.Addr().Next(), netip.MustParseAddrPort(to[i])
	}
	return c
}

// arrive connects once from n new addresses of each family.
func (c *crowd) arrive(n int) {
	c.Helper()
	for range n {
		for i := range c.next {
			if err := c.client.AddAddr("lo", c.next[i]); err != nil {
				c.Fatal(err)
			}
			c.endpoint[c.next[i]] = c.askFrom(c.next[i])
			c.next[i] = c.next[i].Next()
		}
	}
}

func (c *crowd) askFrom(client netip.Addr) string {
	c.Helper()
	to := c.to[0]
	if client.Is6() {
		to = c.to[1]
	}
	a, err := c.client.AskFrom("tcp", client, to, timeout)
	if err != nil {
		c.Errorf("%s asks %s: %v", client, to, err)
	}
	return a.Server
}

// expectNoMoves connects once from each client.
func (c *crowd) expectNoMoves(what string) {
	c.Helper()
	for _, client := range slices.SortedFunc(maps.Keys(c.endpoint), netip.Addr.Compare) {
		if got := c.askFrom(client); got != c.endpoint[client] {
			c.moved++
			c.Errorf("%s: client %s moved from %s to %s", what, client, c.endpoint[client], got)
			c.endpoint[client] = got
		}
		if c.moved > 10 {
			c.FailNow()
		}
	}
}

// affinityPlan is a plan that takes openSmall's backend several transactions, with affinity to three endpoints.
func affinityPlan(t testing.TB) *plan.Plan {
	p := parse(t, service(
		frontend("10.97.0.10:80/TCP ClusterIP masquerade=never affinity=3h", "1 2 3"),
		frontend("203.0.113.2:80/TCP LoadBalancer masquerade=never affinity=3h", "1 2 3"), outsidePool("203.0.113.2:80/TCP", "1 2"),
		frontend("[fd00:10:97::a]:80/TCP ClusterIP masquerade=never affinity=3h", "1 2 3")))
	for _, f := range cluster(50, 25).Frontends {
		p.Frontends[f.Key] = f
	}
	return p
}

// withVersion calls f while tables are written as of another version.
func withVersion(v string, f func()) {
	last := tableComment
	tableComment = "managed by sluice, ruleset version " + v
	f()
	tableComment = last
}

func TestReplacementKeepsEveryClient(t *testing.T) {
	d := newTestEnv(t, 4)
	p, handOff := affinityPlan(t), d.handOff()
	apply := func(b Balancing) {
		t.Helper()
		next := d.openSmall(b)
		defer next.Close()
		if _, err := next.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		if r, err := next.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
			t.Fatalf("a second Apply: %+v, %v", r, err)
		}
	}
	withVersion("0", func() { apply(nil) })
	c := d.newCrowd("10.97.0.10:80", "[fd00:10:97::a]:80")
	c.arrive(clientsPerFamily)
	for _, step := range []struct {
		what   string
		damage string
		to     Balancing
	}{
		{what: "another version"},
		{what: "a foreign chain", damage: "add chain ip sluice extra\nadd chain ip6 sluice extra"},
		{what: "a foreign rule", damage: "insert rule ip sluice services accept\ninsert rule ip6 sluice services accept"},
		{what: "a foreign set", damage: "add set ip sluice extra { type ipv4_addr; }\nadd set ip6 sluice extra { type ipv4_addr; }"},
		{what: "a lost rule", damage: "flush chain ip sluice refuse\nflush chain ip6 sluice refuse"},
		{what: "to mode ipvs", to: handOff},
		{what: "a foreign chain in mode ipvs", damage: "add chain ip sluice extra\nadd chain ip6 sluice extra", to: handOff},
		{what: "to mode nftables"},
	} {
		if step.damage != "" {
			d.mustNFT(step.damage)
		}
		apply(step.to)
		c.expectNoMoves(step.what)
		if step.to == nil { // without IPVS nobody balances new clients
			c.arrive(1)
		}
	}
	if got := d.tables(); got != ourTables {
		t.Errorf("there are %s", got)
	}
}

// TestReplacementKeepsClientsThatComeMeanwhile connects all the time, from known and from new clients.
func TestReplacementKeepsClientsThatComeMeanwhile(t *testing.T) {
	d := newTestEnv(t, 4)
	b, p := d.openSmall(nil), affinityPlan(t)
	defer b.Close()
	if _, err := b.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	c := d.newCrowd("10.97.0.10:80", "[fd00:10:97::a]:80")
	c.arrive(clientsPerFamily)
	var done atomic.Bool
	var rounds atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() && !t.Failed() {
			c.arrive(2)
			c.expectNoMoves("during replacements")
			rounds.Add(1)
		}
	}()
	replacements := 12
	if testing.Short() {
		replacements = 4
	}
	for range replacements {
		last := rounds.Load()
		testenv.Eventually(t, "another round", func() bool { return rounds.Load() != last || t.Failed() })
		d.addForeignChain()
		if _, err := b.Apply(context.Background(), p, nil); err != nil {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	<-ended
	c.expectNoMoves("after replacements")
	t.Logf("%d clients, %d replacements of two tables", len(c.endpoint), replacements)
}

// TestCrashDuringReplacementKeepsEveryClient stops the writer after each of its transactions.
func TestCrashDuringReplacementKeepsEveryClient(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 4)
	p := affinityPlan(t)
	d.mustApply(p, nil)
	c := d.newCrowd("10.97.0.10:80", "[fd00:10:97::a]:80")
	c.arrive(clientsPerFamily / 4)
	step := 1
	if testing.Short() {
		step = 5
	}
	for n := 0; ; n += step {
		d.addForeignChain()
		what := fmt.Sprintf("killed after %d transactions", n)
		dead := d.applyKilled(what, nil, n, p)
		c.expectNoMoves(what)
		b := d.openSmall(nil)
		if _, err := b.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		b.Close()
		c.expectNoMoves(what + ", then replaced")
		if !dead {
			break
		}
	}
	if got := d.tables(); got != ourTables {
		t.Errorf("there are %s", got)
	}
}

// clients returns the recorded clients of IPv4, by set, and the endpoint of each.
func (d *testEnv) clients() (elements map[string]nfnl.Element, endpoints map[string]string) {
	d.Helper()
	b := d.open()
	defer b.Close()
	elements, endpoints = map[string]nfnl.Element{}, map[string]string{}
	t := b.tables[0]
	if mismatch, err := t.load(); mismatch != nil || err != nil {
		d.Fatal(mismatch, err)
	}
	for c, s := range t.affinity.clients {
		list, err := t.dumpSettled(s)
		if err != nil {
			d.Fatal(err)
		}
		for _, e := range list {
			a, _ := netip.AddrFromSlice(e.Key[:4])
			client := fmt.Sprintf("%s %s", strings.TrimPrefix(s.name, "affinity_"), a)
			elements[client] = e
			id := affinityID(uint32Of(e.Data))
			for _, l := range t.groups.byID[id.group()].list(c.list).programmed {
				if id.group().endpoint(l.id) == id {
					endpoints[client] = l.addr.String()
				}
			}
		}
	}
	return elements, endpoints
}

// expectClients checks the recorded clients: what remains of their timeouts, and their endpoints. It empties wanted.
func (d *testEnv) expectClients(begin time.Time, want map[string]time.Duration, endpoints map[string]string) {
	d.Helper()
	got, at := d.clients()
	for client, expires := range want {
		e, ok := got[client]
		if since := time.Since(begin); !ok || e.Timeout != 3*time.Hour || e.Expires > expires || e.Expires < expires-since-time.Second {
			d.Errorf("client %s: timeout %s, expires in %s, want %s less than %s", client, e.Timeout, e.Expires, expires, since)
		}
		if at[client] != endpoints[client] {
			d.Errorf("client %s: endpoint %s, want %s", client, at[client], endpoints[client])
		}
		delete(got, client)
	}
	for client, e := range got {
		if e.Expires > 2*time.Second { // one that may have expired meanwhile
			d.Errorf("client %s: got %+v, want none", client, e)
		}
	}
}

func TestReplacementPreservesExpiryAndIgnoresForeignClients(t *testing.T) {
	d := newTestEnv(t, 0)
	p := affinityPlan(t)
	d.mustApply(p, nil)
	begin := time.Now()
	// Group 1 is in room 1. Its endpoints are numbered in each list.
	d.mustNFT(`add element ip sluice affinity_0_1 {
		198.18.1.1 . 1:0 timeout 3h expires 1h : 1:1,
		198.18.1.2 . 1:0 timeout 3h expires 2s : 1:2,
		198.18.1.3 . 1:0 timeout 9h expires 8h : 1:3,
		198.18.1.4 . 1:0 timeout 3h expires 1h : 1:4,
		198.18.1.5 . 1:0 timeout 3h expires 1h : 2:1,
		198.18.1.6 . 99:0 timeout 3h expires 1h : 1:1,
		198.18.1.7 . 1:0 : 1:1
	}
	add element ip sluice affinity_0_shared { 198.18.1.8 . 1:0 timeout 3h expires 2h : 1:1 }
	add element ip sluice affinity_1_1 { 198.18.1.1 . 1:0 timeout 3h expires 30m : 1:2 }`)
	d.addForeignChain()
	d.mustApply(p, nil)
	d.expectClients(begin, map[string]time.Duration{
		"0_1 198.18.1.1": time.Hour, "0_1 198.18.1.3": 3 * time.Hour, "0_1 198.18.1.8": 2 * time.Hour, "1_1 198.18.1.1": 30 * time.Minute,
	}, map[string]string{
		"0_1 198.18.1.1": "10.244.0.1:9000", "0_1 198.18.1.3": "10.244.0.3:9000", "0_1 198.18.1.8": "10.244.0.1:9000", "1_1 198.18.1.1": "10.244.0.2:9000",
	})
}

// versionFour is what matters here of a table of ruleset version 4, in which the client comes first in IPv6 too.
const versionFour = `table ip6 sluice {
	comment "managed by sluice, ruleset version 4"
	set frontends { type ipv6_addr . inet_proto . inet_service; elements = { fd00:10:97::a . tcp . 80 comment "shop/web:http ClusterIP" }; }
	map affinity_groups { type ipv6_addr . inet_proto . inet_service : classid; elements = { fd00:10:97::a . tcp . 80 : 7:0 }; }
	map affinity_endpoints_0 { type classid . ipv6_addr . inet_service : classid
		elements = { 7:0 . fd00:10:244::1 . 9000 : 7:4, 7:0 . fd00:10:244::3 . 9000 : 7:5 }
	}
	map affinity_0_7 { type ipv6_addr . classid : classid; size 8192; flags dynamic,timeout; }
	map affinity_0_shared { type ipv6_addr . classid : classid; size 262144; flags dynamic,timeout; }
	chain find_affinity_0_7 { }
	map find_affinity { type ipv6_addr . inet_proto . inet_service : verdict; elements = { fd00:10:97::a . tcp . 80 : jump find_affinity_0_7 }; }
	chain prerouting { type nat hook prerouting priority -100; }
}
add element ip6 sluice affinity_0_7 { 2001:db8:18::1 . 7:0 timeout 3h expires 1h : 7:5 }
add element ip6 sluice affinity_0_7 { 2001:db8:18::2 . 8:0 timeout 3h expires 1h : 7:5 }
add element ip6 sluice affinity_0_shared { 2001:db8:18::3 . 7:0 timeout 3h expires 2h : 7:4 }
`

func TestUpgradeFromVersionFourKeepsClients(t *testing.T) {
	d := newTestEnv(t, 0)
	d.mustNFT(versionFour)
	d.mustApply(affinityPlan(t), nil)
	out, err := d.nft("", "list", "map", "ip6", "sluice", "affinity_0_1")
	if err != nil {
		t.Fatal(out, err)
	}
	for client, want := range map[string]string{
		`1:0 \. 2001:db8:18::1 timeout 3h expires (1h|59m)\S* : 1:3`: "its endpoint", `1:0 \. 2001:db8:18::3 timeout 3h expires (2h|1h59m)\S* : 1:1`: "its endpoint",
		`2001:db8:18::2`: "",
	} {
		if regexp.MustCompile(client).MatchString(out) != (want != "") {
			t.Errorf("%s: want %q:\n%s", client, want, out)
		}
	}
}

// TestNewerRecordsWin carries a client over that the new table has recorded already, and more than there is room for.
func TestNewerRecordsWin(t *testing.T) {
	d := newTestEnv(t, 0)
	d.b.limits = AffinityLimits{Reserved: 2, Shared: 1}
	for _, tb := range d.b.tables {
		tb.affinity.limits = d.b.limits
		tb.reset()
	}
	d.mustApply(affinityPlan(t), nil)
	tb := d.b.tables[0]
	begin := time.Now()
	d.mustNFT("add element ip sluice affinity_0_1 { 198.18.1.1 . 1:0 timeout 3h : 1:1 }")
	c := &carrier{to: tb, now: d.clock.Now, timeouts: map[affinityID]time.Duration{groupID(1): 3 * time.Hour}}
	var list []carriedClient
	for _, last := range []byte{1, 2, 3, 4} {
		e := carriedClient{expires: time.Hour, endpoint: groupID(1).endpoint(2)}
		copy(e.key[:], append([]byte{198, 18, 1, last}, groupID(1).bytes()...))
		list = append(list, e)
	}
	for _, left := range []int{2, 1} {
		s := tb.clientsSet(clientSet{0, 1})
		if left == 1 {
			s = tb.clientsSet(clientSet{0, sharedRoom})
		}
		var err error
		if list, err = c.write(s, list, d.clock.t); err != nil || len(list) != left {
			t.Fatalf("%d clients have no room in %s, want %d: %v", len(list), s.name, left, err)
		}
	}
	d.expectClients(begin, map[string]time.Duration{"0_1 198.18.1.1": 3 * time.Hour, "0_1 198.18.1.2": time.Hour, "0_shared 198.18.1.3": time.Hour},
		map[string]string{"0_1 198.18.1.1": "10.244.0.1:9000", "0_1 198.18.1.2": "10.244.0.2:9000", "0_shared 198.18.1.3": "10.244.0.2:9000"})
}
