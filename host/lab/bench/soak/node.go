package soak

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

const (
	pods       = 4
	podPort    = 9000
	askTimeout = 10 * time.Second
	// stopTimeout is the time within which SIGTERM must end the process.
	stopTimeout = 2 * time.Second
)

var nodeAddr = netip.MustParseAddr("192.168.0.1")

// node is a node that runs sluice, with Pods that serve and a client.
type node struct {
	lab     *testnet.Lab
	client  *testnet.Host
	sluice  *testnet.Program
	process benchutil.Process
	http    http.Client
	config  *configFile
	cluster *cluster

	connections, failed atomic.Int64
	firstError          atomic.Value // error of the first failed connection
}

// podAddr returns the address of Pod i, from 1.
func podAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}) }

// startNode starts sluice with the cluster's manifests and a configuration without hostile plugins.
func startNode(o options, dir string, c *cluster) (_ *node, err error) {
	lab, err := testnet.New(nodeAddr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lab.Close()
		}
	}()
	n := &node{lab: lab, cluster: c}
	for i := 1; i <= pods; i++ {
		h, err := lab.AddHost(fmt.Sprint("p", i), podAddr(i))
		if err == nil {
			_, err = h.Serve("tcp", netip.AddrPortFrom(podAddr(i), podPort), h.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	if n.client, err = lab.AddHost("client", netip.MustParseAddr("198.51.100.9")); err != nil {
		return nil, err
	}
	n.http.Timeout = askTimeout
	n.http.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return lab.Node.Dial(ctx, network, at)
	}}
	if n.config, err = newConfigFile(filepath.Join(dir, "sluice.yaml"), filepath.Join(dir, "cache"), o); err != nil {
		return nil, err
	}
	log, err := os.Create(o.log)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.sluice, "run", "--source", c.dir, "--node", "node-1", "--config", n.config.path,
		"--checkpoint", filepath.Join(dir, "checkpoint"), "--socket", filepath.Join(dir, "socket"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends this program, which then ends sluice
	if n.sluice, err = lab.Node.Start(cmd); err != nil {
		return nil, err
	}
	n.process = benchutil.Process(n.sluice.PID())
	return n, nil
}

// stop ends sluice, which must obey SIGTERM in time.
func (n *node) stop() error {
	select {
	case <-n.sluice.Ended():
		return fmt.Errorf("sluice ended by itself: %w; see its log", n.sluice.Wait())
	default:
		return n.sluice.End(syscall.SIGTERM, stopTimeout)
	}
}

// get returns status and body of a page of sluice's metrics or health server.
func (n *node) get(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 32<<20))
	return resp.StatusCode, string(text), err
}

// connect opens a connection and counts it. It returns the name of the server.
func (n *node) connect(to netip.AddrPort) (string, error) {
	a, err := n.client.Ask("tcp", to, askTimeout)
	n.connections.Add(1)
	if err != nil {
		if n.failed.Add(1) == 1 {
			n.firstError.Store(fmt.Errorf("connection to %s: %w", to, err))
		}
	}
	return a.Server, err
}
