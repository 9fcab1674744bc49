package ipvs

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/plan"
)

func TestWhatOthersDoIsNoticedAndRepaired(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := web(t, 1, 3)
	d.apply(b, p, nil)
	heard := make(chan backend.ExternalChange, 10)
	stop, err := b.Watch(func(f backend.ExternalChange) { heard <- f })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	moved := func() bool {
		t.Helper()
		m, err := b.Drifted(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 3 {
		if moved() {
			t.Error("moved without a reason")
		}
	}
	for _, damage := range []string{
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 9",
		"ipvsadm -d -t 10.96.0.80:80 -r 10.244.0.1:9000",
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1 -x 1",
		"ipvsadm -E -t 10.96.0.80:80 -s rr -b flag-3",
		"ipvsadm -D -t 10.96.0.80:80",
		"ip addr del 10.96.0.80/32 dev " + DefaultLink,
		"ip link del " + DefaultLink,
	} {
		words := strings.Fields(damage)
		if _, err := d.run("", words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
		if !moved() {
			t.Errorf("%s is not noticed", damage)
		}
		if got, err := b.Read(context.Background()); err != nil || got.Equal(p) {
			t.Errorf("after %s it reads as before, %v", damage, err)
		}
		d.apply(b, p, nil)
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server == "" {
			t.Error("not repaired")
		}
		moved() // goes on from the start
	}
	if _, err := d.run("flush chain ip sluice services\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
	case <-time.After(askTimeout):
		t.Error("a flushed chain is not heard of")
	}
}

func (d *env) mustRun(words ...string) string {
	d.Helper()
	out, err := d.run("", words[0], words[1:]...)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

// repairDrift looks, as the engine does, and applies when something has moved.
func (d *env) repairDrift(b *Backend, p *plan.Plan) bool {
	d.Helper()
	moved, err := b.Drifted(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if moved {
		d.apply(b, p, nil)
		d.settle(b, p)
	}
	return moved
}

func TestASettingThatSomebodyChangesIsPutRight(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	const path = "/proc/sys/net/ipv4/vs/conntrack"
	d.mustRun("sh", "-c", "echo 0 > "+path)
	if _, err := b.Drifted(context.Background()); err != nil {
		t.Fatal(err)
	}
	if now := strings.TrimSpace(d.mustRun("cat", path)); now != "1" {
		t.Errorf("it is %s", now)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
}

// TestAnAddressThatTheNodeLosesOrGetsIsMovedToTheLinkOrAway is what keepalived does with a virtual address.
func TestAnAddressThatTheNodeLosesOrGetsIsMovedToTheLinkOrAway(t *testing.T) {
	d := newEnv(t)
	d.mustRun("ip", "link", "add", "up7", "type", "dummy")
	d.mustRun("ip", "link", "set", "up7", "up")
	d.mustRun("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	b := d.open()
	p := frontend(t, "203.0.113.5:80/TCP  ExternalIP", "", []int{1})
	d.apply(b, p, nil)
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(when string, own bool) {
		t.Helper()
		d.ask(d.Client, "tcp", "203.0.113.5:80")
		_, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout)
		if own && err != nil || !own && !testnet.Refused(err) {
			t.Errorf("%s: the node's own server: %v", when, err)
		}
		if on := strings.Contains(d.mustRun("ip", "-br", "addr"), DefaultLink+" "); on && strings.Contains(d.linkAddrs(), "203.0.113.5/32") == own {
			t.Errorf("%s: %s", when, d.linkAddrs())
		}
		if d.repairDrift(b, p) {
			t.Errorf("%s: it moves without a reason", when)
		}
	}
	check("the node's own", true)
	d.mustRun("ip", "addr", "del", "203.0.113.5/32", "dev", "up7")
	if !d.repairDrift(b, p) {
		t.Error("not noticed that it is gone")
	}
	check("lost", false)
	d.mustRun("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	if !d.repairDrift(b, p) {
		t.Error("not noticed that it is back")
	}
	check("back", true)
}

func TestAVirtualServerOfOthersIsTakenOverUnlessExcluded(t *testing.T) {
	d := newEnv(t)
	if _, err := d.run("-A -t 10.96.0.80:80 -s rr\n-a -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1\n-a -t 10.96.0.80:80 -r 10.244.0.3:9000 -g -w 1 -x 5\n", "ipvsadm", "-R"); err != nil {
		t.Fatal(err)
	}
	o := d.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Apply(context.Background(), web(t, 1, 1), nil)
	if err == nil || !strings.Contains(err.Error(), "shop/web:http 10.96.0.80:80/TCP") || !strings.Contains(err.Error(), "excludeCIDRs") {
		t.Errorf("an excluded one: %v", err)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "flag-3") || !strings.Contains(s, "10.244.0.3:80 -g") {
		t.Errorf("touched all the same:\n%s", s)
	}
	b.Close()
	b = d.open()
	d.apply(b, web(t, 1, 1), nil)
	if s := d.ipvsadmSave(); strings.Contains(s, "10.244.0.3") || !strings.Contains(s, "wrr -b flag-3") {
		t.Errorf("not taken over:\n%s", s)
	}
}

func TestKubeProxysServersAreTakenOverAndOutliveItsCleaningUp(t *testing.T) {
	d := newEnv(t)
	o := d.options()
	o.Log = slog.New(slog.DiscardHandler)
	if err := newBackend(o, nil).applySysctls(true); err != nil { // kube-proxy sets the same
		t.Fatal(err)
	}
	for _, args := range []string{"link add kube-ipvs0 type dummy", "addr add 10.96.0.80/32 dev kube-ipvs0", "addr add 10.96.0.81/32 dev kube-ipvs0"} {
		if _, err := d.run("", "ip", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.run("-A -t 10.96.0.80:80 -s rr\n-a -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1\n-A -t 10.96.0.81:80 -s rr\n", "ipvsadm", "-R"); err != nil {
		t.Fatal(err)
	}
	// Its rules make conntrack see connections.
	if _, err := d.run("add table ip kube\nadd chain ip kube postrouting { type nat hook postrouting priority 100; }\nadd rule ip kube postrouting ct state established counter\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	conn := d.dial("10.96.0.80:80")
	b := d.open()
	p := web(t, 1, 1)
	d.apply(b, p, nil)
	if err := checkAlive(conn); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	var removed []kubeproxy.Leftover
	err := d.Lab.Node.Do(func() (err error) {
		removed, err = kubeproxy.Remove(context.Background())
		return err
	})
	if err != nil || len(removed) == 0 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "10.96.0.81") || !strings.Contains(s, "-A -t 10.96.0.80:80 -s wrr -b flag-3") {
		t.Errorf("left:\n%s", s)
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("a connection from before, when kube-proxy's link is gone: %v", err)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
	if r := d.apply(b, p, nil); r.Messages != 0 {
		t.Errorf("something was missing: %+v", r)
	}
}
