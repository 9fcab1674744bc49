package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestSourceRangesThatChangeOpenAndCloseNothing: a Service's 1,000 source ranges change to others, in parts, while sluice is
// killed and started. The client, which some range of each generation allows, loses no packet. The stranger, whom none allows,
// never gets through, also while the Service is deleted and created.
func TestSourceRangesThatChangeOpenAndCloseNothing(t *testing.T) {
	for _, mode := range []string{"nftables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			if _, err := os.Stat("/proc/net/ip_vs"); err != nil && mode == "ipvs" {
				t.Skip("this kernel has no IPVS; make test-vm runs this on one that has")
			}
			if mode == "nftables" {
				testenv.OnceForAllKernels(t) // it takes minutes in a test kernel
			}
			testSourceRanges(newNode(t), mode)
		})
	}
}

var balancerIP = netip.MustParseAddrPort("203.0.113.9:80")

func testSourceRanges(n *node, mode string) {
	n.endpoints(1)
	stranger, err := n.lab.AddHost("stranger", netip.MustParseAddr("10.244.0.130"))
	if err != nil {
		n.Fatal(err)
	}
	// p2 and p3 are allowed in turn. Their ranges are the last ones of a list.
	generation := func(i int) {
		ranges := []string{"10.244.0.9/32", "10.244.0.8/29", "10.244.0.8/30"}[i%3] + fmt.Sprintf(", 10.244.0.%d/32", 2+i%2)
		for j := range 1000 - 2 {
			ranges += fmt.Sprintf(", 9.%d.%d.%d/32", i, j>>8, j&0xff)
		}
		n.write("ranged.yaml", fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}], loadBalancerSourceRanges: [%s]}
status: {loadBalancer: {ingress: [{ip: %s}]}}
`, ranges, balancerIP.Addr()))
	}
	if err := os.Remove(filepath.Join(n.dir, "service.yaml")); err != nil {
		n.Fatal(err)
	}
	generation(0)
	n.run("--mode", mode)
	// An attempt that is dropped is not repeated for a second.
	const dropped = 200 * time.Millisecond
	gets := func(h *testnet.Host) bool {
		_, err := h.Ask("tcp", balancerIP, dropped)
		return err == nil
	}
	inForce := func(i int) {
		n.Helper()
		n.until(fmt.Sprint("generation ", i), func() bool { return gets(n.pods[fmt.Sprint("p", 2+i%2)]) && !gets(n.pods[fmt.Sprint("p", 3-i%2)]) })
	}
	inForce(0)

	var done, absent atomic.Bool
	var all sync.WaitGroup
	var connections, attempts atomic.Int64
	defer all.Wait()
	defer done.Store(true)
	all.Go(func() {
		for !done.Load() && !n.Failed() {
			if absent.Load() {
				time.Sleep(time.Millisecond) // pace of looks
			} else if lost, err := lostPackets(n.client); err != nil && !absent.Load() {
				n.Errorf("the client's connection: %v", err)
			} else if lost > 0 && !absent.Load() {
				n.Errorf("%d packets of the client's connection were repeated", lost)
			}
			connections.Add(1)
		}
	})
	for range 4 {
		all.Go(func() {
			for ; !done.Load() && !n.Failed(); attempts.Add(1) {
				if _, err := stranger.Ask("tcp", balancerIP, 30*time.Millisecond); err == nil {
					n.Error("the stranger got through")
				}
			}
		})
	}
	const generations = 10
	for i := 1; i <= generations && !n.Failed(); i++ {
		generation(i)
		if i%2 == 0 {
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // pace of changes
			_ = n.stop(syscall.SIGKILL)
			n.run("--mode", mode)
		}
		inForce(i)
	}
	absent.Store(true)
	for i := 1; i <= generations/2 && !n.Failed(); i++ {
		if err := os.Remove(filepath.Join(n.dir, "ranged.yaml")); err != nil {
			n.Fatal(err)
		}
		n.until("deleted", func() bool { return !gets(n.pods["p2"]) && !gets(n.pods["p3"]) })
		generation(i)
		inForce(i)
	}
	n.until("attempts", func() bool { return n.Failed() || attempts.Load() > 100 && connections.Load() > 100 })
	n.Logf("%d connections, %d attempts", connections.Load(), attempts.Load())
}

// lostPackets makes a connection, and returns how many of its packets were repeated.
func lostPackets(h *testnet.Host) (lost int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := h.Dial(ctx, "tcp", balancerIP)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	t := c.(*net.TCPConn)
	_ = t.SetLinger(0) // no TIME_WAIT
	raw, err := t.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var ierr error
	err = raw.Control(func(fd uintptr) { info, ierr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(err, ierr); err != nil {
		return 0, err
	}
	return int(info.Total_retrans), nil
}
