package nftables

import (
	"context"
	"errors"
	"flag"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// shopPlan has one of everything.
func shopPlan() string {
	lb, np := "203.0.113.2:80/TCP LoadBalancer masquerade=from-node affinity=3h", "*4:30080/TCP NodePort masquerade=always affinity=3h"
	return service(
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=outside affinity=3h outcomes=counted", "1 2*3"),
		strings.Replace(frontend(lb, "1 2*3"), "    forward", "    source-ranges 198.51.100.0/24\n    forward", 1), outsidePool(lb, "1"),
		frontend(np, "1 2*3"), outsidePool(np, "drop"),
		frontend("10.96.0.10:53/UDP ClusterIP masquerade=never", "reject"),
		frontend("[fd00:10:96::a]:80/TCP ClusterIP masquerade=outside affinity=3h outcomes=counted", "1 2"),
	)
}

func TestListingIsReadableAndLoadsBack(t *testing.T) {
	d := newTestEnv(t, 2)
	d.apply(shopPlan())
	got, err := d.nft("", "list", "ruleset")
	if err != nil {
		t.Fatalf("nft list ruleset: %v\n%s", err, got)
	}
	for _, line := range []string{
		`10.96.0.10 . tcp . 80 comment "shop/web:http ClusterIP outcomes"`,
		`tcp . 30080 comment "shop/web:http NodePort"`,
		`10.96.0.10 . tcp . 80 . 0 : 10.244.0.1 . 9000`,
		`10.96.0.10 . tcp . 80 . 3 : 10.244.0.2 . 9000`,
		`203.0.113.2 . tcp . 80 . 198.51.100.0`,
	} {
		if !strings.Contains(got, line) {
			t.Errorf("the listing lacks %q", line)
		}
	}
	got = sortElements(got)
	const golden = "testdata/listing.nft"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	version, _ := d.nft("", "--version")
	if diff := cmp.Diff(string(want), got); diff != "" && strings.Contains(version, "v1.0.6") {
		t.Errorf("the listing changed; look, and run with -update (-want +got):\n%s", diff)
	}
}

// sortElements sorts the elements of each set. The kernel returns them in random order.
func sortElements(listing string) string {
	return regexp.MustCompile(`elements = \{ ([^}]*) \}`).ReplaceAllStringFunc(listing, func(s string) string {
		list := strings.Split(strings.TrimSuffix(strings.TrimPrefix(s, "elements = { "), " }"), ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list)
		return "elements = { " + strings.Join(list, ",\n\t\t\t     ") + " }"
	})
}

func TestRestartSendsNothing(t *testing.T) {
	d := newTestEnv(t, 2)
	p := d.apply(shopPlan())
	d.ask(d.client, "tcp", "10.96.0.10:80") // adds a client to affinity_0
	d.clock.t = d.clock.t.Add(time.Hour)
	for range 2 {
		d.restart()
		before, _ := d.b.generation(context.Background())
		r, err := d.b.Apply(context.Background(), p, nil)
		if err != nil || r != (backend.Report{}) {
			t.Fatalf("got %+v, %v", r, err)
		}
		r, err = d.b.Apply(context.Background(), p, &plan.Delta{})
		if err != nil || r != (backend.Report{}) {
			t.Fatalf("got %+v, %v", r, err)
		}
		if after, _ := d.b.generation(context.Background()); after != before {
			t.Errorf("the ruleset's generation went from %d to %d", before, after)
		}
	}
}

// TestForeignTableIsReplacedWithoutLosingConnections checks that no connection fails during the replacement.
func TestForeignTableIsReplacedWithoutLosingConnections(t *testing.T) {
	for name, damage := range map[string]string{
		"a rule is gone":       "flush chain ip sluice refuse",
		"a rule is new":        "add rule ip sluice service counter",
		"a rule is another":    "flush chain ip sluice refuse; add rule ip sluice refuse drop",
		"a set is new":         "add set ip sluice services { type ipv4_addr; }",
		"a chain is new":       "add chain ip sluice extra",
		"a foreign element":    "add element ip sluice service_cidrs { 1.2.3.4-1.2.3.9 }",
		"another version":      "delete table ip sluice; add table ip sluice { comment \"managed by sluice, ruleset version 0\"; }",
		"a table without sets": "delete table ip sluice; add table ip sluice",
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestEnv(t, 2)
			p := d.apply(shopPlan())
			if out, err := d.nft(strings.ReplaceAll(damage, "; ", "\n")+"\n", "-f", "-"); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			gap := strings.HasPrefix(damage, "delete table")
			stop, failed := make(chan struct{}), make(chan error, 1)
			go func() {
				defer close(failed)
				for {
					select {
					case <-stop:
						return
					default:
						if _, err := d.client.Ask("tcp", netip.MustParseAddrPort("10.96.0.10:80"), timeout); err != nil && !gap {
							failed <- err
							return
						}
					}
				}
			}()
			time.Sleep(20 * time.Millisecond) // nothing happens to connections
			d.restart()
			if _, err := d.b.Apply(context.Background(), p, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // nothing happens to connections
			close(stop)
			if err := <-failed; err != nil {
				t.Errorf("a connection failed: %v", err)
			}
			d.expectPlan(p)
			if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r.Messages != 0 {
				t.Errorf("second Apply: %+v, %v", r, err)
			}
		})
	}
}

func TestErrorsNameOperationAndObject(t *testing.T) {
	d := newTestEnv(t, 0)
	prev := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2 3")))
	next := parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2 4")))
	// Another process deletes the slot that is about to be replaced.
	if out, err := d.nft("delete element ip sluice slots { 10.96.0.10 . tcp . 80 . 2 }\n", "-f", "-"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	_, err := d.b.Apply(context.Background(), next, plan.Diff(prev, next))
	if !errors.Is(err, unix.ENOENT) || !strings.HasPrefix(err.Error(), "nftables: delete 1 slots of shop/web:http: no such file") {
		t.Errorf("got %v", err)
	}
	// The next Apply reads the state.
	d.mustApply(next, nil)
	d.expectPlan(next)
}

func TestPermissionErrorNamesTheCapability(t *testing.T) {
	if err := nfnl.Hint(unix.EPERM); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
	d := newTestEnv(t, 0)
	b := d.open()
	defer b.Close()
	// The kernel checks the capabilities of the sending thread.
	type result struct{ err error }
	done := make(chan result)
	go func() {
		lockedWithoutCapabilities(t, func() {
			_, err := b.Apply(context.Background(), parse(t, service()), nil)
			done <- result{err}
		})
	}()
	if r := <-done; !errors.Is(r.err, unix.EPERM) || !strings.Contains(r.err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", r.err)
	}
}

func TestLargePlanFitsSmallSocketBuffer(t *testing.T) {
	d := newTestEnv(t, 0)
	d.b.Close()
	d.b = d.openWith(Options{SendBuffer: 200 << 10})
	p := cluster(300, 40)
	// Also more endpoints than fit one transaction.
	f := clusterFrontend(9999, 6000, 0)
	p.Frontends[f.Key] = f
	d.mustApply(p, nil)
	d.expectPlan(p)
	none := &plan.Plan{Global: p.Global}
	d.mustApply(none, plan.Diff(p, none))
	d.expectPlan(none)
}

func TestGlobalSettingsChangeInPlace(t *testing.T) {
	d := newTestEnv(t, 2)
	rest := "service shop/web\n" + frontend("10.96.0.10:80/TCP ClusterIP masquerade=always", "1") + frontend("*4:30080/TCP NodePort masquerade=never", "2")
	for _, g := range []string{
		"global\n  masquerade-mark 0x4000\n",
		"global\n  node-port-addresses 192.168.0.1 192.168.7.7\n  pod-sources 0.0.0.0/1 128.0.0.0/1 ::/0\n  masquerade-mark 0x8000\n",
		"global\n  node-port-addresses 192.168.7.7\n  pod-sources 10.0.0.0/9 10.128.0.0/9\n  pod-interfaces cali* cali1 eth0 v-p*\n  masquerade-mark 0x80000000\n",
		"global\n  service-cidrs 10.96.0.0/16 fd00::/8\n  pod-interfaces a*\n  masquerade-mark 0x1\n",
	} {
		d.apply(g + "\n" + rest)
		if a := d.ask(d.pods[1], "tcp", "10.96.0.10:80"); a.Client.Addr() == d.pods[1].Addrs[0] {
			t.Errorf("%s: not masqueraded", g)
		}
		for _, to := range []string{"192.168.0.1", "192.168.7.7"} {
			_, err := d.client.Ask("tcp", netip.MustParseAddrPort(to+":30080"), timeout)
			if want := strings.Contains(g, to); (err == nil) != want {
				t.Errorf("%s: NodePort on %s: %v", g, to, err)
			}
		}
	}
}

// TestLoadDetectsChangedElementsOfLargeMaps is about maps that are read by fetching the expected slots.
func TestLoadDetectsChangedElementsOfLargeMaps(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	p := cluster(300, 9)
	d.mustApply(p, nil)
	d.expectPlan(p)
	for name, damage := range map[string]string{
		"a slot is gone":             "delete element ip sluice slots { 10.96.0.7 . tcp . 80 . 3 }",
		"the last slot is gone":      "delete element ip sluice slots { 10.96.0.7 . tcp . 80 . 8 }",
		"a slot too many":            "add element ip sluice slots { 10.96.0.7 . tcp . 80 . 9 : 10.9.9.9 . 80 }",
		"a slot far off":             "add element ip sluice slots { 10.96.0.7 . tcp . 80 . 65535 : 10.9.9.9 . 80 }",
		"a slot without a frontend":  "add element ip sluice slots { 10.99.0.7 . tcp . 80 . 0 : 10.9.9.9 . 80 }",
		"another endpoint in a slot": "delete element ip sluice slots { 10.96.0.7 . tcp . 80 . 3 }\nadd element ip sluice slots { 10.96.0.7 . tcp . 80 . 3 : 10.9.9.9 . 80 }",
		"a frontend without a total": "delete element ip sluice total_16 { 10.96.0.7 . tcp . 80 }",
		"a frontend in two totals":   "add set ip sluice total_4 { type ipv4_addr . inet_proto . inet_service; }\nadd element ip sluice total_16 { 10.96.9.7 . tcp . 80 }",
		"a frontend is gone":         "delete element ip sluice frontends { 10.96.0.7 . tcp . 80 }",
		"an address is gone":         "delete element ip sluice cluster_ips { 10.96.0.7 }",
		"a hairpin entry is gone":    "delete element ip sluice hairpin { 128.0.0.7 . 128.0.0.7 }",
	} {
		if out, err := d.nft(damage+"\n", "-f", "-"); err != nil {
			t.Fatalf("%s: %s: %v", name, out, err)
		}
		r, err := d.b.Apply(context.Background(), p, nil)
		if err != nil || r.Messages == 0 {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		d.expectPlan(p)
		if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r != (backend.Report{}) {
			t.Fatalf("%s: second Apply: %+v, %v", name, r, err)
		}
	}
}

func TestInvalidFrontendDoesNotBlockOthers(t *testing.T) {
	d := newTestEnv(t, 0)
	good := parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	p := parse(t, service(frontend("10.96.0.9:80/TCP ClusterIP masquerade=never", "1"), frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	for k, f := range p.Frontends {
		if k.Addr == netip.MustParseAddr("10.96.0.9") {
			f.Pool.Endpoints[0].Addr = netip.MustParseAddrPort("[fd00::1]:80")
		}
	}
	_, err := d.b.Apply(context.Background(), p, nil)
	if err == nil || !strings.Contains(err.Error(), "shop/web:http 10.96.0.9:80/TCP: endpoint [fd00::1]:80: not IPv4") {
		t.Errorf("got %v", err)
	}
	d.expectPlan(good)
}

// TestReadSucceedsDuringWritesToOtherTables reads while another program writes to its own table without a pause.
func TestReadSucceedsDuringWritesToOtherTables(t *testing.T) {
	d := newTestEnv(t, 0)
	p := cluster(400, 10)
	d.mustApply(p, nil)
	other, err := Open(Options{Netns: d.lab.Node.Fd(), Now: d.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			out := nfnl.NewBatch(other.conn)
			kind := uint16(unix.NFT_MSG_NEWTABLE)
			if i%2 == 1 {
				kind = unix.NFT_MSG_DELTABLE
			}
			out.Message(kind, 0, unix.NFPROTO_INET, "write", "other")
			out.PutString(unix.NFTA_TABLE_NAME, "other")
			out.End()
			if err := out.Commit(); err != nil {
				t.Errorf("the other writer: %v", err)
				return
			}
		}
	}()
	for range 3 {
		d.expectPlan(p)
		if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r.Messages != 0 {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	close(stop)
	<-ended
}
