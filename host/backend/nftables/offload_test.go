package nftables

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/sluice-proxy/sluice/host/util/nfnl/nfnltest"
)

func noFilters() (string, error) { return "", nil }

// offloadEnv is a lab that counts packets in forward, which those of a flowtable pass by.
type offloadEnv struct{ *testEnv }

// newOffloadEnv skips the test if the kernel has no flowtables.
func newOffloadEnv(t *testing.T, pods int) offloadEnv {
	t.Helper()
	d := offloadEnv{newTestEnv(t, pods)}
	probed, _, err := Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range probed {
		if f.Name == featureFlowtables {
			testenv.RequireOfTestKernels(t, f.Err)
		}
	}
	if out, err := d.nft(`table inet watch { chain forward { type filter hook forward priority 0; counter; }; }`, "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	return d
}

// sync brings the flowtable up to date.
func (d offloadEnv) sync() backend.Offload {
	d.Helper()
	o := d.b.SyncOffload(context.Background(), noFilters)
	if o.Reason != "" || o.Failed > 0 || o.Frontends > 0 && o.Links < len(d.pods)+1 || o.Others > 0 {
		d.Fatalf("%+v", o)
	}
	return o
}

var packetCount = regexp.MustCompile(`packets (\d+)`)

// forwarded returns how many packets have passed the hook forward.
func (d offloadEnv) forwarded() int {
	d.Helper()
	out, err := d.nft("", "list", "chain", "inet", "watch", "forward")
	m := packetCount.FindStringSubmatch(out)
	if err != nil || m == nil {
		d.Fatal(out, err)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// talk sends and receives once, and returns the name of the server if it says so each time.
func talk(c net.Conn) (string, error) {
	if _, ok := c.(*net.UDPConn); !ok {
		return "", echo(c)
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("x\n")); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

// connect opens a connection and returns it with the name of its server.
func (d offloadEnv) connect(network, to string) (net.Conn, string) {
	d.Helper()
	c, err := d.client.Dial(context.Background(), network, netip.MustParseAddrPort(to))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { c.Close() })
	if network == "udp" {
		return c, ""
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	a, err := testnet.Greeting(c)
	if err != nil {
		d.Fatal(err)
	}
	return c, a.Server
}

// offloaded reports whether the next packets of a connection, in both directions, pass by the hook forward.
func (d offloadEnv) offloaded(c net.Conn) bool {
	d.Helper()
	before := d.forwarded()
	for range 5 {
		if _, err := talk(c); err != nil {
			d.Fatal(err)
		}
	}
	return d.forwarded() == before
}

func (d offloadEnv) connectOffloaded(network, to string) (net.Conn, string) {
	d.Helper()
	c, server := d.connect(network, to)
	testenv.Eventually(d, network+" "+to+" is offloaded", func() bool { return d.offloaded(c) })
	return c, server
}

const (
	hinted   = "10.96.0.10:80/TCP ClusterIP masquerade=never flows=offloaded"
	hintedTo = "10.96.0.10:80"
)

// TestLongLivedConnectionsGoByTheFlowtable: those of frontends with LongLived, of each kind and family, masqueraded or not, and
// no others. Without such a frontend there is neither flowtable nor chain.
func TestLongLivedConnectionsGoByTheFlowtable(t *testing.T) {
	d := newOffloadEnv(t, 2)
	empty := func() {
		t.Helper()
		d.sync()
		if out, err := d.nft("", "list", "table", "ip", "sluice"); err != nil || strings.Contains(out, "offload") || strings.Contains(out, "hook forward") {
			t.Errorf("%v: %s", err, out)
		}
	}
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2")))
	empty()
	for _, masquerade := range []string{"never", "always"} {
		var hint, plain []string
		for _, key := range []string{
			"10.96.0.10:80/TCP ClusterIP", "10.96.0.10:80/UDP ClusterIP", "*4:30080/TCP NodePort",
			"[fd00:10:96::a]:80/TCP ClusterIP", "[fd00:10:96::a]:80/UDP ClusterIP", "*6:30080/TCP NodePort",
		} {
			hint = append(hint, frontend(key+" masquerade="+masquerade+" flows=offloaded", "1 2"))
			plain = append(plain, frontend(strings.Replace(key, "80/", "81/", 1)+" masquerade="+masquerade, "1 2"))
		}
		d.apply(service(append(hint, plain...)...))
		if o := d.sync(); o.Frontends != len(hint) {
			t.Errorf("%+v", o)
		}
		for _, to := range [][2]string{
			{"tcp", hintedTo}, {"udp", hintedTo}, {"tcp", "192.168.0.1:30080"},
			{"tcp", "[fd00:10:96::a]:80"}, {"udp", "[fd00:10:96::a]:80"}, {"tcp", "[fd00:192::1]:30080"},
		} {
			c, _ := d.connect(to[0], to[1])
			if d.offloaded(c) {
				t.Errorf("%s %s, masquerade %s: offloaded at once", to[0], to[1], masquerade)
			}
			testenv.Eventually(t, to[0]+" "+to[1]+" is offloaded", func() bool { return d.offloaded(c) })
		}
		for _, to := range []string{"10.96.0.10:81", "[fd00:10:96::a]:81", "192.168.0.1:30081"} {
			c, _ := d.connect("tcp", to)
			for range 10 {
				if d.offloaded(c) {
					t.Fatalf("%s has no hint and is offloaded", to)
				}
			}
		}
	}
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2")))
	empty()
}

// TestOffloadedConnectionsOutliveChanges of what new connections get: their endpoint gets no new ones, the hint is removed, the
// flowtable is. With session affinity, new connections of the client go where it was.
func TestOffloadedConnectionsOutliveChanges(t *testing.T) {
	d := newOffloadEnv(t, 2)
	goesOn := func(c net.Conn) {
		t.Helper()
		for range 10 {
			if _, err := talk(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.apply(service(frontend(hinted, "1")))
	d.sync()
	c, _ := d.connectOffloaded("tcp", hintedTo)
	d.apply(service(frontend(hinted, "2")))
	goesOn(c)
	for range 5 {
		if a := d.ask(d.client, "tcp", hintedTo); a.Server != "p2" {
			t.Errorf("a new connection goes to %s", a.Server)
		}
	}
	plain := strings.TrimSuffix(hinted, " flows=offloaded")
	d.apply(service(frontend(plain, "2")))
	goesOn(c)
	d.sync()
	if d.offloaded(c) {
		t.Error("offloaded without a flowtable")
	}
	goesOn(c)
	if other, _ := d.connect("tcp", hintedTo); d.offloaded(other) {
		t.Error("offloaded without a hint")
	}

	d.apply(service(frontend(hinted+" affinity=1h", "1 2")))
	d.sync()
	_, server := d.connectOffloaded("tcp", hintedTo)
	for range 10 {
		if a := d.ask(d.client, "tcp", hintedTo); a.Server != server {
			t.Errorf("the client was at %s and is now at %s", server, a.Server)
		}
	}
}

// TestOffloadedConnectionsAreReset by their next packet, also if their endpoint stays.
func TestOffloadedConnectionsAreReset(t *testing.T) {
	d := newOffloadEnv(t, 1)
	d.apply(service(frontend(hinted, "1")))
	d.sync()
	c, _ := d.connectOffloaded("tcp", hintedTo)
	if err := d.lab.Node.Do(func() error {
		n, err := (&conntrack.Table{}).Reset(t.Context(), []plan.Reset{{
			Frontend: plan.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: model.TCP}, Endpoint: netip.MustParseAddrPort("10.244.0.1:9000"),
		}}, d.b)
		if n.Connections != 1 || n.Uncertain != 0 {
			t.Errorf("%+v", n)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := talk(c); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Error(err)
	}
}

// TestOffloadedConnectionsAreCounted: outcomes are those of their first packets.
func TestOffloadedConnectionsAreCounted(t *testing.T) {
	d := newOffloadEnv(t, 1)
	d.apply(service(frontend(hinted+" outcomes=counted", "1")))
	d.sync()
	for range 3 {
		d.connectOffloaded("tcp", hintedTo)
	}
	got, err := d.b.ReadOutcomes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := model.EndpointKey{Addr: netip.MustParseAddrPort("10.244.0.1:9000"), Protocol: model.TCP}
	if want := (backend.OutcomeCounters{Attempts: 3, Answered: 3}); got[e] != want {
		t.Errorf("%+v, want %+v", got[e], want)
	}
	count := map[model.EndpointKey]uint32{e: 0}
	if err := d.lab.Node.Do(func() error {
		return (&conntrack.Table{}).CountConnections(t.Context(), count)
	}); err != nil || count[e] != 3 {
		t.Errorf("%v open connections, %v", count, err)
	}
}

// TestFlowtableFollowsLinks that come and go, also behind sluice's back.
func TestFlowtableFollowsLinks(t *testing.T) {
	d := newOffloadEnv(t, 1)
	d.apply(service(frontend(hinted, "1")))
	before := d.sync().Links
	h, err := d.lab.AddHost("late", netip.MustParseAddr("10.244.0.77"))
	if err != nil {
		t.Fatal(err)
	}
	if n := d.sync().Links; n != before+1 {
		t.Errorf("%d links, %d before there was one more", n, before)
	}
	if err := d.lab.Detach(h); err != nil {
		t.Fatal(err)
	}
	if n := d.sync().Links; n != before {
		t.Errorf("%d links, %d before there was one more", n, before)
	}
	links, ok, err := d.b.conn.Flowtable(d.b.tables[0].Table, flowtable)
	if err != nil || !ok || len(links) != before {
		t.Errorf("the kernel has %q, %v", links, err)
	}
	d.connectOffloaded("tcp", hintedTo)
	if out, err := d.nft("", "delete", "rule", "ip", "sluice", chainOffload, "handle", d.firstRule(chainOffload)); err != nil {
		t.Fatal(out, err)
	}
	d.sync()
	d.connectOffloaded("tcp", hintedTo)
}

func (d offloadEnv) firstRule(chain string) string {
	d.Helper()
	out, err := d.nft("", "-a", "list", "chain", "ip", "sluice", chain)
	m := regexp.MustCompile(`(?m)^\t\t.*# handle (\d+)$`).FindAllStringSubmatch(out, -1)
	if err != nil || len(m) == 0 {
		d.Fatal(out, err)
	}
	return m[0][1]
}

// TestRestartAdoptsTheFlowtable: neither Apply nor SyncOffload writes, and a connection stays offloaded. The same holds when nft
// has loaded its listing.
func TestRestartAdoptsTheFlowtable(t *testing.T) {
	d := newOffloadEnv(t, 1)
	p := d.apply(service(frontend(hinted, "1"), frontend("*4:30080/TCP NodePort masquerade=always flows=offloaded", "1")))
	d.sync()
	c, _ := d.connectOffloaded("tcp", hintedTo)
	adopts := func() {
		t.Helper()
		d.restart()
		gen, err := d.b.generation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r, err := d.b.Apply(t.Context(), p, nil); err != nil || r.Messages > 0 {
			t.Errorf("%+v, %v", r, err)
		}
		d.sync()
		if after, err := d.b.generation(t.Context()); err != nil || after != gen {
			t.Errorf("generation %d, was %d, %v", after, gen, err)
		}
	}
	adopts()
	if !d.offloaded(c) {
		t.Error("a connection is no longer offloaded")
	}
	listing, err := d.nft("", "list", "table", "ip", "sluice")
	if err != nil {
		t.Fatal(listing, err)
	}
	if out, err := d.nft("delete table ip sluice\n"+listing, "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	adopts()
	d.restart()
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.sync()
	if out, err := d.nft("", "list", "table", "ip", "sluice"); err != nil || strings.Contains(out, flowtable) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCleanupRemovesTheFlowtable with the table.
func TestCleanupRemovesTheFlowtable(t *testing.T) {
	d := newOffloadEnv(t, 1)
	d.apply(service(frontend(hinted, "1")))
	d.sync()
	d.connectOffloaded("tcp", hintedTo)
	if _, err := Cleanup(t.Context(), d.lab.Node.Fd()); err != nil {
		t.Fatal(err)
	}
	if out, err := d.nft("", "list", "ruleset"); err != nil || strings.Contains(out, "sluice") {
		t.Errorf("%v: %s", err, out)
	}
}

// withoutFlowtables is a transport to a kernel without them.
type withoutFlowtables struct{ nfnl.Transport }

// Send implements nfnl.Transport.
func (f withoutFlowtables) Send(b []byte) error {
	messages, transaction := nfnltest.Messages(b)
	for _, at := range messages {
		if transaction && b[at+4] == unix.NFT_MSG_NEWFLOWTABLE {
			b[at+4] = 0xff // no such message type
		}
	}
	return f.Transport.Send(b)
}

// TestRefusedHintsLoseNothing: while other programs filter, or the kernel refuses the flowtable, connections are forwarded like
// others, Apply works, and the reason is given.
func TestRefusedHintsLoseNothing(t *testing.T) {
	d := newTestEnv(t, 1)
	p := d.apply(service(frontend(hinted, "1")))
	for why, filters := range map[string]func() (string, error){
		"a chain filters": func() (string, error) { return "a chain filters", nil },
		"who knows":       func() (string, error) { return "", errors.New("who knows") },
	} {
		if o := d.b.SyncOffload(t.Context(), filters); !strings.Contains(o.Reason, why) || o.Links != 0 || o.Frontends != 1 || o.Failed != 0 {
			t.Errorf("%+v", o)
		}
	}
	d.b.conn.Transport = withoutFlowtables{d.b.conn.Transport}
	for i := range 2 {
		if o := d.b.SyncOffload(t.Context(), noFilters); o.Reason == "" || o.Links != 0 || o.Failed != uint64(i+1) {
			t.Errorf("%+v", o)
		}
	}
	if r, err := d.b.Apply(t.Context(), p, &plan.Delta{}); err != nil || r.Messages > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	d.expectPlan(p)
	d.ask(d.client, "tcp", hintedTo)
	if err := d.b.Close(); err != nil {
		t.Fatal(err)
	}
	d.b.SyncOffload(t.Context(), noFilters) // of a backend that is no longer in use
}
