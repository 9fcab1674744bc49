package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestRestartInTheOtherModeKeepsConnections goes from nftables to IPVS and back, killed each time, under load, with
// open connections from each mode.
func TestRestartInTheOtherModeKeepsConnections(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS; make test-vm runs this on one that has")
	}
	n := newNode(t)
	n.run("--mode", "nftables")
	n.expect("in mode nftables", "p1 p2")
	connections := map[string]func() error{"nftables": n.holdOpen()}
	load := n.load(2)
	for _, mode := range []string{"ipvs", "nftables", "ipvs"} {
		n.stop(syscall.SIGKILL)
		n.run("--mode", mode)
		n.expect("in mode "+mode, "p1 p2")
		for from, alive := range connections {
			if err := alive(); err != nil {
				t.Errorf("in mode %s, a connection from mode %s: %v", mode, from, err)
			}
		}
		if mode == "nftables" {
			n.logs("draining virtual servers of the previous mode")
		}
		if servers := n.command("", "cat", "/proc/net/ip_vs"); strings.Contains(servers, "TCP") != (mode == "ipvs" || connections["ipvs"] != nil) {
			t.Errorf("in mode %s: %s", mode, servers)
		}
		if connections[mode] == nil {
			connections[mode] = n.holdOpen()
		}
	}
	load.stop(50)
	n.stop(syscall.SIGTERM)
	if out, err := n.sluice("cleanup"); err != nil || !strings.Contains(out, "removed link sluice-ipvs0") {
		t.Errorf("%v: %s", err, out)
	}
}

// holdOpen opens a connection and returns a check that it is alive.
func (n *node) holdOpen() func() error {
	n.Helper()
	c, err := n.client.Dial(context.Background(), "tcp", vip)
	if err == nil {
		_, err = testnet.Greeting(c)
	}
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { c.Close() })
	return func() error {
		_ = c.SetDeadline(time.Now().Add(timeout))
		if _, err := c.Write([]byte("still there\n")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 12))
		return err
	}
}

// TestModeSwitchWhileRunning does the same with the configuration file.
func TestModeSwitchWhileRunning(t *testing.T) {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		t.Skip("this kernel has no IPVS; make test-vm runs this on one that has")
	}
	n := newNode(t)
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	configure := func(more string) {
		t.Helper()
		temp := file + ".tmp"
		if err := os.WriteFile(temp, []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nmetricsBindAddress: ''\nhealthzBindAddress: ''\n"+more), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, file); err != nil {
			t.Fatal(err)
		}
	}
	configure("mode: nftables\n")
	n.run("--config", file)
	n.expect("in mode nftables", "p1 p2")
	connections := []func() error{n.holdOpen()}
	load := n.load(2)
	alive := func(what string) {
		t.Helper()
		for i, alive := range connections {
			if err := alive(); err != nil {
				t.Errorf("%s: connection %d: %v", what, i, err)
			}
		}
	}
	configure("mode: ipvs\n")
	n.logs("from=nftables to=ipvs")
	n.endpoints(2, 3)
	n.expect("in mode ipvs", "p2 p3")
	connections = append(connections, n.holdOpen())
	alive("in mode ipvs")

	configure("mode: ipvs\nipvs: {scheduler: nosuch}\n")
	n.logs("switching the backend failed")
	configure("mode: ipvs\nipvs: {scheduler: wlc}\n")
	n.logs(`"switched backend" from=ipvs to=ipvs`) // not the failed one
	if servers := n.command("", "cat", "/proc/net/ip_vs"); !strings.Contains(servers, " wlc ") {
		t.Errorf("the scheduler: %s", servers)
	}
	alive("with another scheduler")

	configure("mode: nftables\n")
	n.logs("from=ipvs to=nftables")
	n.endpoints(1)
	n.expect("in mode nftables again", "p1")
	n.logs("draining virtual servers of the previous mode")
	alive("in mode nftables again")
	load.stop(50)
}
