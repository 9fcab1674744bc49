package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// holdWatcher notes what is held when the kernel replaces a scheduler.
type holdWatcher struct {
	ipvsAPI
	env     *memEnv
	changes []string
}

func (w *holdWatcher) do(o op) error {
	if was, _, _ := w.getServer(o.key); o.kind == opSetServer {
		change := fmt.Sprintf("%s: %s to %s", o.key, was.scheduler, o.scheduler)
		if was.scheduler != o.scheduler && !w.env.holds(o.key) {
			change += ", not held"
		}
		w.changes = append(w.changes, change)
	}
	return w.ipvsAPI.do(o)
}

// holds reports whether the hold tables have a virtual server.
func (d *memEnv) holds(k serverKey) bool {
	family := map[bool]string{false: "ip", true: "ip6"}[k.v6]
	set, element := "addrs", fmt.Sprintf("%s . %s . %d ", k.addr, strings.ToLower(k.proto.String()), k.port)
	if k.mark != 0 {
		set, element = "marks", fmt.Sprintf("0x%08x ", k.mark)
	}
	out, err := d.run("", "nft", "list", "set", family, "sluice-hold", set)
	return err == nil && strings.Contains(out, element)
}

func (d *memEnv) openWatched() (*Backend, *holdWatcher) {
	b := d.open()
	w := &holdWatcher{ipvsAPI: b.ipvs, env: d}
	b.ipvs = w
	return b, w
}

const everyKindOfServer = `service shop/web
  port http  10.96.0.80:80/TCP  ClusterIP  balance=%[1]s
    forward  2 endpoints, total 2
      10.244.0.1:9000  weight 1  50.0 %%  active
      10.244.0.2:9000  weight 1  50.0 %%  active
  port http  *4:30080/TCP  NodePort  balance=%[1]s
    forward  2 endpoints, total 2
      10.244.0.1:9000  weight 1  50.0 %%  active
      10.244.0.2:9000  weight 1  50.0 %%  active
  port http  [fd00:10:96::80]:80/UDP  ClusterIP  balance=%[1]s
    forward  1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %%  active
`

// TestNewConnectionsAreHeldWhileASchedulerChanges: the kernel rejects them between two schedulers.
func TestNewConnectionsAreHeldWhileASchedulerChanges(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newMemEnv(t)
	b, w := d.openWatched()
	d.apply(b, parse(t, fmt.Sprintf(everyKindOfServer, "random")), nil)
	if len(w.changes) > 0 {
		t.Errorf("changed new virtual servers: %v", w.changes)
	}
	d.apply(b, parse(t, fmt.Sprintf(everyKindOfServer, "least-connections")), nil)
	slices.Sort(w.changes)
	want := []string{"10.96.0.80:80/TCP: wrr to wlc", "[fd00:10:96::80]:80/UDP: wrr to wlc", "fwmark 0x1f7e IPv4: wrr to wlc"}
	if !slices.Equal(w.changes, want) {
		t.Errorf("changes %q, want %q", w.changes, want)
	}
	if out := d.mustRun("nft", "list", "tables"); strings.Contains(out, "sluice-hold") {
		t.Errorf("left:\n%s", out)
	}
}

// TestSchedulersOfOthersStayWhileWeightsAreEqual: taking over kube-proxy's virtual servers leaves them without a scheduler at no
// time.
func TestSchedulersOfOthersStayWhileWeightsAreEqual(t *testing.T) {
	testenv.OnceForAllKernels(t)
	for from, want := range map[string][2][]string{
		"rr":  {{"rr to rr"}, {"rr to wrr"}},
		"lc":  {{"lc to lc", "lc to wrr"}, nil},
		"wrr": {{"wrr to wrr"}, nil},
	} {
		d := newMemEnv(t)
		k := addrKey(netip.MustParseAddr("10.96.0.80"), 80, model.TCP)
		d.virtualServers[k] = &fakeServer{serverConfig: serverConfig{scheduler: from}, destinations: map[netip.AddrPort]destinationState{}}
		b, w := d.openWatched()
		check := func(when string, want []string) {
			t.Helper()
			got := strings.ReplaceAll(strings.Join(w.changes, ", "), k.String()+": ", "")
			if w.changes = nil; got != strings.Join(want, ", ") {
				t.Errorf("%s, %s: %s, want %v", from, when, got, want)
			}
		}
		equal := web(t, 1, 1)
		d.apply(b, equal, nil)
		check("taken over", want[0])
		for range 2 { // a restart too
			if r := d.apply(b, equal, nil); r.Messages > 0 || d.repairDrift(b, equal) {
				t.Errorf("%s: sent %+v, or drifted", from, r)
			}
			b, w = d.openWatched()
		}
		d.apply(b, web(t, 1, 2), nil)
		check("other weights", want[1])
	}
}

// TestHoldsEndByThemselves: sluice may be killed before it ends one.
func TestHoldsEndByThemselves(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newMemEnv(t)
	b := d.open()
	k := addrKey(netip.MustParseAddr("10.96.0.80"), 80, model.TCP)
	if _, err := b.holdNew([]serverKey{k, {mark: 0x1f7f}}); err != nil {
		t.Fatal(err)
	}
	if !d.holds(k) || !d.holds(serverKey{mark: 0x1f7f}) {
		t.Fatalf("holds nothing:\n%s", d.mustRun("nft", "list", "ruleset"))
	}
	testenv.Eventually(t, "end of the hold", func() bool { return !d.holds(k) && !d.holds(serverKey{mark: 0x1f7f}) })
	d.apply(b, web(t, 1, 1), nil)
	if out := d.mustRun("nft", "list", "tables"); strings.Contains(out, "sluice-hold") {
		t.Errorf("left:\n%s", out)
	}
}

// TestHeldConnectionsAreMadeAfterwards: a client waits, and is not refused.
func TestHeldConnectionsAreMadeAfterwards(t *testing.T) {
	testenv.OnceForAllKernels(t)
	for _, at := range []string{"192.168.0.1:8080", "[fd00:192::1]:8080"} {
		d := newMemEnv(t)
		to := netip.MustParseAddrPort(at)
		var l net.Listener
		err := d.Lab.Node.Do(func() (err error) { l, err = net.Listen("tcp", at); return err })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		dial := func(h *testnet.Host, within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			c, err := h.Dial(ctx, "tcp", to)
			if err == nil {
				c.Close()
			}
			return err
		}
		release, err := d.open().holdNew([]serverKey{addrKey(to.Addr(), to.Port(), model.TCP)})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range []*testnet.Host{d.Client, d.Lab.Node} {
			var timeout net.Error
			if err := dial(h, 100*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%s to %s while it is held: %v", h.Name, at, err)
			}
		}
		release()
		for _, h := range []*testnet.Host{d.Client, d.Lab.Node} {
			if err := dial(h, askTimeout); err != nil {
				t.Errorf("%s to %s: %v", h.Name, at, err)
			}
		}
	}
}
