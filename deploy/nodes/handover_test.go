package nodes

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// TestHandOver follows deploy/README.md from kube-proxy in modes iptables, nftables and ipvs to sluice and back, under load, with
// many Services too. No new connection may fail, and no long one may be broken.
func TestHandOver(t *testing.T) {
	if os.Getenv(enabledHandOver) == "" {
		t.Skip("make test-handover")
	}
	for _, h := range []handOver{
		{name: "iptables", kubeProxy: "iptables"},
		{name: "iptables with 10000 Services", kubeProxy: "iptables", services: 10000},
		{name: "nftables with 10000 Services", kubeProxy: "nftables", services: 10000},
		{name: "ipvs", kubeProxy: "ipvs", sluice: "ipvs", kernel: "6.12"},
		{name: "ipvs with 10000 Services", kubeProxy: "ipvs", sluice: "ipvs", kernel: "6.12", services: 10000},
	} {
		t.Run(h.name, h.test)
	}
}

// handOver is a way from kube-proxy to sluice and back.
type handOver struct {
	name, kubeProxy string
	sluice          string // mode; "": nftables
	kernel          string // "": this machine's
	services        int
}

// patience is how long a hand-over may take to be complete: virtual servers are looked at once a minute, and end with their
// connections.
const patience = 5 * time.Minute

func (h handOver) test(t *testing.T) {
	c := newCluster(t, realcluster.Config{Name: "hand-over", Mode: h.kubeProxy, Kernel: h.kernel})
	c.serve()
	if h.services > 0 {
		c.must(c.manyServices(h.services))
	}
	c.install.Config = "mode: " + cmp.Or(h.sluice, "nftables")
	c.until(patience, "kube-proxy's rules", func() string { return h.rules(c, true) })
	c.until(patience, "kube-proxy forwards", c.nodePortsAnswer)

	load := c.load()
	began := time.Now()
	c.must(c.Install(t.Context(), c.install))
	t.Logf("installed after %.0f s", time.Since(began).Seconds())
	load.end("installation", false)
	c.until(patience, "kube-proxy's rules are gone", func() string { return h.rules(c, false) })
	if logs := c.logs(); t.Failed() {
		t.Log(logs)
	}

	if h.sluice == "ipvs" { // or connections end with their virtual servers
		load = c.load()
		c.must(replace(filepath.Join(c.Work, "deploy/kustomize/overlays/mine/sluice.yaml"), "\nmode: ipvs\n", "\nmode: nftables\n"))
		c.block("Change the configuration", 1)
		c.must(c.Rollout(t.Context(), "sluice-system", "daemonset/sluice"))
		load.end("change of the mode", false)
		c.until(patience, "no virtual servers but that of the Service kubernetes, to which CoreDNS is connected", func() string {
			return c.onWorkers("", "sh", "-c", "! grep -E '^(TCP|UDP|SCTP|FWM)' /proc/net/ip_vs | grep -v :01BB")
		})
	}

	load = c.load()
	began = time.Now()
	c.must(c.Rollback(t.Context()))
	t.Logf("rolled back after %.0f s", time.Since(began).Seconds())
	load.end("rollback", false)
	c.until(patience, "sluice's tables are gone", func() string { return c.onWorkers("sluice", "nft", "list", "tables") })
	if wrong := h.rules(c, true); wrong != "" {
		t.Error(wrong)
	}
}

// rules says what is wrong if kube-proxy's rules have to be on all nodes, or on none.
func (h handOver) rules(c *cluster, want bool) string {
	sign, command := "KUBE-SVC-", []string{"iptables-nft-save", "-t", "nat"}
	switch h.kubeProxy {
	case "nftables":
		sign, command = "table ip kube-proxy\n", []string{"nft", "list", "tables"}
	case "ipvs":
		sign, command = "kube-ipvs0", []string{"ip", "-br", "addr"}
	}
	for _, n := range c.Nodes {
		out, err := n.Exec(c.Context(), command...)
		if err != nil || strings.Contains(out, sign) != want {
			return fmt.Sprintf("%s, %s: %v, %t that it has %s", n.Name, command, err, !want, sign)
		}
	}
	return ""
}

// onWorkers runs a command on all workers. It says where that fails, or prints what it must not.
func (c *cluster) onWorkers(not string, command ...string) string {
	for _, n := range c.Workers() {
		out, err := n.Exec(c.Context(), command...)
		if err != nil || not != "" && strings.Contains(out, not) {
			return fmt.Sprintf("%s, %s: %v\n%s", n.Name, command, err, out)
		}
	}
	return ""
}

// nodePortsAnswer says on which worker the NodePort does not answer, eight times.
func (c *cluster) nodePortsAnswer() string {
	for _, n := range c.Workers() {
		if wrong := c.nodePortAnswers(n); wrong != "" {
			return wrong
		}
	}
	return ""
}

func (c *cluster) nodePortAnswers(n *realcluster.Node) string {
	at := netip.AddrPortFrom(n.Addrs[0], nodePort).String()
	out, err := c.Outside.Run("", append([]string{c.programs.Load, "ask"}, slices.Repeat([]string{at}, 8)...)...)
	if err != nil || regexp.MustCompile(denied).MatchString(out) {
		return fmt.Sprintf("%s: %v\n%s", n.Name, err, out)
	}
	return ""
}

// manyServices creates Services whose endpoints do not exist, every tenth of type NodePort.
func (c *cluster) manyServices(n int) error {
	c.must(c.AddNamespace(c.Context(), "many"))
	defer func(began time.Time) { c.Logf("%d Services after %.0f s", n, time.Since(began).Seconds()) }(time.Now())
	return c.CreateInBulk(c.Context(), n, func(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
		name := fmt.Sprint("s", i)
		s := testcluster.Service("many", name, netip.Addr{}, 80)
		if i%10 == 0 {
			s.Spec.Type = corev1.ServiceTypeNodePort
		}
		at := func(net byte) testcluster.Endpoint {
			return testcluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 200 + net + byte(i>>8)%25, byte(i)}), Node: "n1"}
		}
		return s, testcluster.Slice("many", name, 8080, at(0), at(25))
	})
}

func replace(file, old, with string) error {
	text, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(text), old) {
		err = fmt.Errorf("%s has no %q", file, old)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(text), old, with)), 0o644)
}
