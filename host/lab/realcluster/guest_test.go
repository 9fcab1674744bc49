package realcluster

import (
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/lab/vm"
)

func TestNodesRunAKernelOfTheirOwn(t *testing.T) {
	series := vm.Series()
	kernel := series[len(series)-1]
	c := newClusters(t, Config{Name: "guests", Workers: 1, Kernel: kernel})[0]
	c.answers(t)
	n := c.Node("n1")
	out, err := n.Exec(t.Context(), "sh", "-c", "uname -r; cat /proc/net/ip_vs; ls -d /proc/sys/net/sctp")
	if err != nil || !strings.HasPrefix(out, kernel) || !strings.Contains(out, "IP Virtual Server") || !strings.Contains(out, "net/sctp") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := n.Exec(t.Context(), "sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "why") {
		t.Errorf("a command that fails: %v", err)
	}
	before, err := n.Exec(t.Context(), "pidof", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Kill("kubelet", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Within(t, 5*testnet.AnswerTimeout, "a new kubelet", func() bool {
		pid, err := n.Exec(t.Context(), "pidof", "kubelet")
		return err == nil && pid != before
	})
	at := netip.AddrPortFrom(n.Addrs[0], 30080)
	testenv.Within(t, 5*testnet.AnswerTimeout, "an answer at a NodePort", func() bool { return answers(c, at) })
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if answers(c, at) {
		t.Error("the node answers without power")
	}
	if _, err := n.Exec(t.Context(), "true"); err == nil {
		t.Error("a node that is off runs commands")
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Within(t, 5*testnet.AnswerTimeout, "an answer at a NodePort after a reboot", func() bool { return answers(c, at) })
}

// answers asks a port from outside of the nodes.
func answers(c *Cluster, at netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := c.Outside.Dial(ctx, "tcp", at)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
