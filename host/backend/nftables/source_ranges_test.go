package nftables

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// sibling returns the range beside that of an address: it differs in the last bit.
func sibling(a netip.Addr, bits int) netip.Prefix {
	b := a.AsSlice()
	b[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
	a, _ = netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, bits).Masked()
}

// TestSourceRangesOfEveryLength connects to a frontend for each length of a prefix whose range contains the client, and to one
// whose range, and those of all greater lengths, are beside it.
func TestSourceRangesOfEveryLength(t *testing.T) {
	d := newTestEnv(t, 1)
	p := parse(t, service(
		frontend("203.0.113.2:1/TCP LoadBalancer masquerade=never", "1"), frontend("[2001:db8:2::2]:1/TCP LoadBalancer masquerade=never", "1")))
	like := p.Keys()
	var allowed, denied []netip.AddrPort
	for i, k := range like {
		from := d.client.Addr(k.Addr)
		add := func(port int, ranges ...netip.Prefix) netip.AddrPort {
			f := *p.Frontends[like[i]]
			f.Key.Port, f.SourceRanges = uint16(port), plan.NormalizePrefixes(ranges)
			p.Frontends[f.Key] = &f
			return netip.AddrPortFrom(f.Key.Addr, f.Key.Port)
		}
		var beside []netip.Prefix
		for bits := from.BitLen(); bits >= 0; bits-- {
			allowed = append(allowed, add(1000+bits, append(slices.Clone(beside), netip.PrefixFrom(from, bits).Masked())...))
			if bits > 0 {
				beside = append(beside, sibling(from, bits))
				denied = append(denied, add(2000+bits, beside...))
			}
		}
	}
	if err := plan.Validate(p); err != nil {
		t.Fatal(err)
	}
	d.mustApply(p, nil)
	d.expectPlan(p)
	d.restart()
	if r := d.report(p, nil); r.Messages > 0 {
		t.Errorf("a restart sent %+v", r)
	}
	for _, to := range allowed {
		d.ask(d.client, "tcp", to.String())
	}
	var all sync.WaitGroup
	for chunk := range slices.Chunk(denied, 1+len(denied)/8) {
		all.Go(func() {
			for _, to := range chunk {
				if _, err := d.client.Ask("tcp", to, 150*time.Millisecond); !testnet.TimedOut(err) {
					t.Errorf("%s: got %v, want a timeout", to, err)
				}
			}
		})
	}
	all.Wait()
}

// TestChangesOfSourceRangesLoseNoConnection changes ranges to others, of other lengths, to none and back, while clients connect
// that are always allowed.
func TestChangesOfSourceRangesLoseNoConnection(t *testing.T) {
	for _, c := range []struct {
		key        string
		bits       []int // of the ranges around the clients; 0: all sources are allowed
		a, b, more string
	}{
		{"203.0.113.2:80/TCP LoadBalancer masquerade=never", []int{32, 24, 0, 31, 8, 17, 32, 0, 1}, "198.51.100.9", "10.244.0.1", "192.0.2.0/24"},
		{"[2001:db8:2::2]:80/TCP LoadBalancer masquerade=never", []int{128, 64, 0, 127, 48, 61, 8, 0, 29}, "2001:db8::9", "fd00:10:244::1", "3fff::/20"},
	} {
		t.Run(c.a, func(t *testing.T) {
			d := newTestEnv(t, 1)
			at := func(i int) *plan.Plan {
				p := parse(t, service(frontend(c.key, "1")))
				if bits := c.bits[i%len(c.bits)]; bits > 0 {
					p.Frontends[p.Keys()[0]].SourceRanges = plan.NormalizePrefixes([]netip.Prefix{
						netip.PrefixFrom(netip.MustParseAddr(c.a), bits), netip.PrefixFrom(netip.MustParseAddr(c.b), bits), netip.MustParsePrefix(c.more)})
				}
				return p
			}
			last := at(0)
			d.mustApply(last, nil)
			to, _, _ := strings.Cut(c.key, "/")
			stop := d.connectRepeatedly(to, 0)
			changes := 10_000
			if testing.Short() {
				changes = 500
			}
			for i := range changes {
				next := at(i + 1)
				d.mustApply(next, plan.Diff(last, next))
				if last = next; t.Failed() {
					break
				}
			}
			n := stop(int64(changes / 20))
			d.expectPlan(last)
			t.Logf("%d connections during %d changes", n, changes)
		})
	}
}

// TestUpgradeFromVersionFourLosesNoConnection replaces a table whose source ranges are in an interval set, as version 4 wrote it.
func TestUpgradeFromVersionFourLosesNoConnection(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 2)
	old, err := os.ReadFile("testdata/version4.nft")
	if err != nil {
		t.Fatal(err)
	}
	d.mustNFT(string(old))
	d.expectDropped(d.pods[0], "tcp", "[2001:db8:2::2]:80")
	ranged := func(line, ranges string) string {
		return strings.Replace(frontend(line, "1 2"), "    forward", "    source-ranges "+ranges+"\n    forward", 1)
	}
	p := parse(t, service(
		ranged("203.0.113.2:80/TCP LoadBalancer masquerade=never", "10.244.0.0/30 198.51.100.0/24"),
		ranged("[2001:db8:2::2]:80/TCP LoadBalancer masquerade=never", "2001:db8::9/128"),
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2")))
	stop := d.connectRepeatedly("203.0.113.2:80", 0)
	d.mustApply(p, nil)
	stop(100)
	d.expectPlan(p)
	d.expectDropped(d.pods[0], "tcp", "[2001:db8:2::2]:80")
	d.ask(d.client, "tcp", "[2001:db8:2::2]:80")
	if got := d.tables(); got != ourTables {
		t.Errorf("there are %s", got)
	}
}

// TestNoFrontendIsInAnIntervalSet: the kernel copies a whole interval set of concatenated keys in each transaction that changes
// it, and looks at all of it for each element that is deleted. So no such set may have elements of all Services.
func TestNoFrontendIsInAnIntervalSet(t *testing.T) {
	testenv.OnceForAllKernels(t)
	for _, b := range []Balancing{Slots{}, &HandOff{}} {
		for name, s := range newSchema(model.IPv6, b, AffinityLimits{}).byName {
			if s.flags&unix.NFT_SET_INTERVAL != 0 && slices.Contains(s.key, portField) {
				t.Errorf("%s is an interval set", name)
			}
		}
	}
}

// TestUncommonSourceRangesAreNotLookedUpForOthers: a source is looked up once for each length, and a tenant can use all lengths.
func TestUncommonSourceRangesAreNotLookedUpForOthers(t *testing.T) {
	testenv.OnceForAllKernels(t)
	s := newSchema(model.IPv6, Slots{}, AffinityLimits{})
	for _, n := range s.byName {
		n.exists = true
	}
	for _, c := range s.ruleset(1 << 14) {
		if c.name == "source_ranges" && len(c.rules) > 20 {
			t.Errorf("every frontend's sources are looked up %d times", len(c.rules))
		}
	}
}

// TestRestartWhileSourceRangesChange: sluice ends while the 5,000 ranges of a frontend, the most that it may have, change to
// 5,000 others, and others are wanted when it starts.
func TestRestartWhileSourceRangesChange(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	if limit, _ := d.b.bounds(); limit < nfnl.DefaultSendBuffer*9/10 {
		t.Skipf("transactions have at most %d bytes here: root may send larger ones", limit)
	}
	at := func(generations ...int) *plan.Plan {
		p := parse(t, service(frontend("[2001:db8:2::2]:1/TCP LoadBalancer masquerade=never", "1")))
		f := p.Frontends[p.Keys()[0]]
		for _, g := range generations {
			for i := range 5000 {
				f.SourceRanges = append(f.SourceRanges, netip.PrefixFrom(netip.AddrFrom16([16]byte{32, 1, 13: byte(g), 14: byte(i >> 8), 15: byte(i)}), 128))
			}
		}
		return p
	}
	d.mustApply(at(1), nil)
	between := at(1, 2)
	d.mustApply(between, plan.Diff(at(1), between))
	d.expectPlan(between)
	d.restart()
	d.mustApply(at(3), nil)
	d.expectPlan(at(3))
}

// rangedFrontend returns a frontend with a number of source ranges of one address each. Another generation has others.
func rangedFrontend(i, ranges, generation int) *plan.Frontend {
	f := clusterFrontend(i, 1, 0)
	f.Kind = plan.LoadBalancer
	for j := range ranges {
		f.SourceRanges = append(f.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(1 + j>>8), byte(j), byte(i), byte(generation)}), 32))
	}
	f.SourceRanges = plan.NormalizePrefixes(f.SourceRanges)
	return f
}

// BenchmarkSourceRanges changes all 1,000 source ranges of a frontend.
func BenchmarkSourceRanges(b *testing.B) {
	for _, others := range []int{0, 30, 100} {
		b.Run(fmt.Sprintf("beside-%dx1000", others), func(b *testing.B) {
			d := newTestEnv(b, 0)
			p := cluster(0, 0)
			for i := range others + 1 {
				f := rangedFrontend(i, 1000, 0)
				p.Frontends[f.Key] = f
			}
			d.mustApply(p, nil)
			var used time.Duration
			i := 0
			for b.Loop() {
				i++
				delta := replaceFrontend(p, rangedFrontend(0, 1000, i%200))
				begin := cpu(b)
				d.mustApply(p, delta)
				used += cpu(b) - begin
			}
			b.ReportMetric(used.Seconds()*1e3/float64(b.N), "cpu-ms/op")
		})
	}
}
