package guide

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

const where = "../../../host/backend/ipvs/FROM-KUBE-PROXY.md"

// TestMigrationGuide starts with kube-proxy in mode ipvs, follows each step, and then switches to mode nftables.
func TestMigrationGuide(t *testing.T) {
	n := newNode(t)
	g := read(t, where)
	kubeProxy := n.kubeProxy()
	kubeProxy.waitProgrammed()

	config := n.migrateConfig(g)
	n.plan(g)
	n.initHost(g)

	alive, closeHeld := n.holdOpen("kube-proxy's time")
	before := n.mustRun(g.command("ipvsadm -Ln"))
	stop := n.load()
	kubeProxy.stop()
	sluice := n.start("sluice", g.command("sluice run --config sluice.yaml --cleanup-kube-proxy"))
	sluice.logs("synced all services")
	n.kubeProxyIsRemoved("KUBE-|kube-ipvs0 .*[0-9a-f]/|:30081 lc") // objects without connections
	t.Logf("%d new connections during the change, none refused or lost", stop(30))
	alive("under sluice")
	n.answered("under sluice")
	n.sluiceForwards(g, before)
	n.seen(g)

	n.switchToNFTables(g, sluice, config, alive, closeHeld)
	g.all()
}

// kubeProxy creates all objects and starts kube-proxy with its ConfigMap.
func (n *node) kubeProxy() *daemon {
	n.Helper()
	user, err := n.UserKubeconfig("system:kube-proxy")
	if err == nil {
		err = os.Symlink(user, filepath.Join(n.home, "kubeconfig.conf"))
	}
	manifest, config := n.configMap("kubeconfig.conf")
	if err == nil {
		err = os.WriteFile(filepath.Join(n.home, "config.conf"), []byte(config), 0o644)
	}
	ctx := n.Context()
	for _, namespace := range []string{"shop", metav1.NamespaceSystem} {
		if err == nil {
			err = n.AddNamespace(ctx, namespace)
		}
	}
	if err == nil {
		err = n.Apply(ctx, services+n.slices()+"---\n"+manifest)
	}
	for name, patch := range addresses {
		if err == nil {
			_, err = n.Client.CoreV1().Services("shop").Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		}
	}
	bin, ferr := binaries.Find(binaries.KubeProxy)
	if err = errors.Join(err, ferr); err != nil {
		n.Fatal(err)
	}
	return n.start("kube-proxy", filepath.Join(bin, binaries.KubeProxy)+" --config=config.conf -v=2")
}

// waitProgrammed waits until kube-proxy has programmed everything that will be taken over.
func (d *daemon) waitProgrammed() {
	d.Helper()
	d.eventually("has programmed IPVS", func() error {
		out, err := d.poll(state)
		if err != nil {
			return err
		}
		for _, want := range []string{
			"TCP  10.96.0.10:80 lc", "TCP  [fd00:96::10]:80 lc", "TCP  172.18.0.11:30080 lc", "SCTP 10.96.0.13:90 lc", "persistent 10800",
			"-> 10.244.1.1:8080", "198.18.0.10/32", "fd00:1:198::10/128", "KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
			":KUBE-SERVICES", ":KUBE-IPVS-FILTER", ":KUBE-NODE-PORT", ":KUBE-IPVS-OUT-FILTER",
		} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q in\n%s", want, out)
			}
		}
		return nil
	})
	d.run(state)
	d.answered("under kube-proxy")
}

// state lists what kube-proxy has programmed.
const state = "ipvsadm -Ln; ip -br addr show dev kube-ipvs0; ipset list -n; iptables-save; ip6tables-save"

// migrateConfig is step 1.
func (n *node) migrateConfig(g *text) (config string) {
	n.Helper()
	out := n.mustRun(g.command(`kubectl -n kube-system get configmap kube-proxy -o jsonpath='{.data.config\.conf}' | sluice config migrate - > sluice.yaml`))
	if !strings.Contains(out, "ipvs.scheduler: lc: replaced with wlc") {
		n.Errorf("standard error does not say what became of the scheduler:\n%s", out)
	}
	raw, err := os.ReadFile(filepath.Join(n.home, "sluice.yaml"))
	if err != nil {
		n.Fatal(err)
	}
	config = string(raw)
	n.Logf("sluice.yaml:\n%s", config)
	for _, want := range []string{"kind: SluiceConfiguration", "\nmode: ipvs\n", "scheduler: wlc", "strictARP: true", "tcpTimeout: 22m0s", "tcpFinTimeout: 33s", "- 192.0.2.0/24", "min: 300000"} {
		if !strings.Contains(config, want) {
			n.Errorf("no %q in sluice.yaml", want)
		}
	}
	return config
}

// plan is step 2.
func (n *node) plan(g *text) {
	n.Helper()
	out := n.mustRun(g.command("sluice plan --kubeconfig ~/.kube/config --node NODE --config sluice.yaml --mode ipvs", "NODE", nodeName))
	for _, want := range []string{"10.96.0.10:80/TCP", "[fd00:96::10]:80/TCP", "10.244.1.1:8080", "30080"} {
		if !strings.Contains(out, want) {
			n.Errorf("the plan has no %q", want)
		}
	}
}

// initHost is steps 3 and 4, after a reboot has reset what --init-only configures.
func (n *node) initHost(g *text) {
	n.Helper()
	n.mustRun("sysctl -q -w net.netfilter.nf_conntrack_max=100000 net.ipv4.vs.expire_nodest_conn=0 net.ipv4.vs.expire_quiescent_template=0 " +
		"net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0")
	check := g.command("sluice check --config sluice.yaml")
	if out := n.mustRun(check); !strings.Contains(out, "net.ipv4.vs.expire_nodest_conn: 0; sluice run sets it to 1") || !strings.Contains(out, "net.ipv4.conf.all.arp_announce: 0; sluice run sets it to 2") {
		n.Error("sluice check does not name the missing sysctls")
	}
	n.mustRun(g.command("sluice run --init-only --config sluice.yaml"))
	n.checkSysctls()
	if out := n.mustRun(check); strings.Contains(out, "sluice run sets it to") {
		n.Error("after --init-only, sluice check still finds sysctls to set")
	}
}

// checkSysctls checks the sysctls of the guide's table, and its statements about conntrack.
func (n *node) checkSysctls() {
	n.Helper()
	for name, want := range map[string]string{
		"net.netfilter.nf_conntrack_max": "300000", "net.ipv4.ip_forward": "1",
		"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.expire_nodest_conn": "1", "net.ipv4.vs.expire_quiescent_template": "1",
		"net.ipv4.vs.sloppy_sctp": "1", "net.ipv4.vs.conn_reuse_mode": "1", "net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2",
	} {
		if got := strings.TrimSpace(n.mustRun("sysctl -n " + name)); got != want {
			n.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// kubeProxyIsRemoved waits until no object in the kernel matches.
func (n *node) kubeProxyIsRemoved(what string) {
	n.Helper()
	n.eventually("what kube-proxy has left is removed", func() error {
		out, err := n.poll("iptables-nft-save; iptables-legacy-save; ip6tables-nft-save; ip6tables-legacy-save; ipset list -n; ip -br addr; ipvsadm -Ln")
		if err != nil {
			return err
		}
		if left := regexp.MustCompile(`(?m)^.*(`+what+`).*$`).FindAllString(out, -1); len(left) > 0 {
			return errors.New(strings.Join(left, "\n"))
		}
		return nil
	})
}

// sluiceForwards compares the virtual servers with those of kube-proxy and with the guide.
func (n *node) sluiceForwards(g *text, before string) {
	n.Helper()
	now := n.mustRun(g.command("ipvsadm -Ln"))
	// Service addresses have one virtual server each, as before; NodePorts have one for a firewall mark instead.
	for _, line := range regexp.MustCompile(`(?m)^(TCP|UDP|SCTP) +(\S+) `).FindAllStringSubmatch(before, -1) {
		at, err := netip.ParseAddrPort(line[2])
		if err != nil {
			n.Fatal(err)
		}
		nodePort := at.Port() >= 30000 && at.Port() < 32768
		has := regexp.MustCompile(`(?m)^` + line[1] + ` +` + regexp.QuoteMeta(line[2]) + ` `).MatchString(now)
		switch {
		case at.Addr().String() == "10.96.0.14": // has no endpoints
		case at.Port() == 30080 && at.Addr() == n.here.Node.Addr(at.Addr()): // has a connection from kube-proxy's time
			if !has {
				n.Errorf("%s is gone under its connections", line[2])
			}
		case has == nodePort:
			n.Errorf("%s %s: there: %v", line[1], line[2], has)
		}
	}
	for _, want := range []string{"wlc (flag-3)", "FWM"} {
		if !strings.Contains(now, want) {
			n.Errorf("no %q in\n%s", want, now)
		}
	}
	if strings.Contains(now, "persistent") {
		n.Error("session affinity is IPVS's")
	}
	if out := n.mustRun("ipvsadm -L --timeout"); !strings.Contains(out, "1320 33 300") {
		n.Errorf("timeouts: %s", out)
	}
	if out := n.mustRun("ip -br addr show dev sluice-ipvs0"); !strings.Contains(out, "198.18.0.10/32") || !strings.Contains(out, "fd00:1:198::10/128") {
		n.Errorf("sluice-ipvs0: %s", out)
	}
	if out := n.mustRun(g.command("nft list table ip sluice")); !strings.Contains(out, "fwmarks") {
		n.Errorf("rules of mode ipvs:\n%s", out)
	}
	n.mustRun(g.command("ipvsadm -Ln --thresholds"))
	n.checkSysctls()
}

// seen is step 6.
func (n *node) seen(g *text) {
	n.Helper()
	out := n.mustRun(g.command("sluice explain -n NAMESPACE SERVICE", "NAMESPACE", "shop", "SERVICE", "web"))
	if !strings.Contains(out, "KERNEL") || !strings.Contains(out, "10.244.1.1:8080") {
		n.Errorf("explain:\n%s", out)
	}
}

// switchToNFTables switches the mode under load, with connections from both previous phases.
func (n *node) switchToNFTables(g *text, sluice *daemon, config string, alive func(string), closeHeld func()) {
	n.Helper()
	under, closeUnder := n.holdOpen("mode ipvs")
	stop := n.load()
	file := filepath.Join(n.home, "sluice.yaml")
	next := strings.Replace(config, "mode: ipvs", "mode: nftables", 1)
	if next == config {
		n.Fatalf("no line mode: ipvs in\n%s", config)
	}
	err := os.WriteFile(file+".new", []byte(next), 0o644)
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		n.Fatal(err)
	}
	sluice.logs("from=ipvs to=nftables")
	n.answered("in mode nftables")
	stop(30)
	alive("in mode nftables")
	under("in mode nftables")
	closeHeld()
	closeUnder()
	if testing.Short() {
		n.Log("not waited for: virtual servers without connections are removed at the next check, a minute later")
		return
	}
	n.kubeProxyIsRemoved("kube-ipvs0|:30080 lc")
	n.eventually("the virtual servers are removed", func() error {
		out, err := n.poll("ipvsadm -Ln; ip -br link")
		if err == nil && (strings.Contains(out, "->") && regexp.MustCompile(`(?m)^(TCP|UDP|SCTP|FWM) `).MatchString(out) || strings.Contains(out, "sluice-ipvs0")) {
			err = errors.New(out)
		}
		return err
	})
	n.answered("in mode nftables, alone")
}
