package ipvs

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/kubeproxy"
)

func TestForeignVirtualServersAreTakenOverUnlessExcluded(t *testing.T) {
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
		t.Errorf("an excluded virtual server: %v", err)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "flag-3") || !strings.Contains(s, "10.244.0.3:80 -g") {
		t.Errorf("changed nevertheless:\n%s", s)
	}
	b.Close()
	b = d.open()
	d.apply(b, web(t, 1, 1), nil)
	if s := d.ipvsadmSave(); strings.Contains(s, "10.244.0.3") || !strings.Contains(s, " rr -b flag-3") {
		t.Errorf("not taken over:\n%s", s)
	}
}

func TestKubeProxyVirtualServersAreTakenOverAndSurviveItsCleanup(t *testing.T) {
	d := newEnv(t)
	o := d.options()
	o.Log = slog.New(slog.DiscardHandler)
	if err := newBackend(o, nil).applySysctls(true); err != nil { // as kube-proxy does
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
	// Like kube-proxy's rules, these make conntrack track connections.
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
		removed, err = kubeproxy.Remove(context.Background(), kubeproxy.PortRange{From: 30000, To: 32767})
		return err
	})
	if err != nil || len(removed) == 0 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "10.96.0.81") || !strings.Contains(s, "-A -t 10.96.0.80:80 -s rr -b flag-3") {
		t.Errorf("left:\n%s", s)
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("a connection from before, after the deletion of kube-proxy's link: %v", err)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
	if r := d.apply(b, p, nil); r.Messages != 0 {
		t.Errorf("the second Apply sent something: %+v", r)
	}
}
