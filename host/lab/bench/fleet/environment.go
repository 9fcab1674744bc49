package fleet

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// environment is a control plane on its own host and a host for all agents.
type environment struct {
	*loadgen.Environment
	nodes *testnet.Host
	dir   string // of the agents' kubeconfigs
}

func newEnvironment(ctx context.Context, agents int) (s *environment, err error) {
	s = &environment{}
	if s.Environment, err = loadgen.NewEnvironment(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "bench-fleet-"); err != nil {
		return s, err
	}
	if s.nodes, err = s.Net.AddHost("nodes", netip.MustParseAddr("192.0.2.2")); err != nil {
		return s, err
	}
	for i := range agents {
		path, err := s.Kubeconfig()
		if err == nil {
			err = os.Rename(path, kubeconfig(s.dir, i))
		}
		if err != nil {
			return s, err
		}
	}
	return s, s.Cluster.Parallel(ctx, agents, func(ctx context.Context, i int) error {
		addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		return s.Cluster.AddNode(ctx, testcluster.Node{Name: nodeName(i), Zone: "zone-0", Addrs: []netip.Addr{addr}})
	})
}

func (s *environment) close() {
	s.Close()
	_ = os.RemoveAll(s.dir)
}

// server returns the API server's process, which changes with a restart.
func (s *environment) server() benchutil.Process {
	return benchutil.Process(s.Cluster.PID(binaries.APIServer))
}

// received returns the bytes received by the agents' host.
func (s *environment) received() (float64, error) { return loadgen.Received(s.nodes) }

// connections returns the number of connections of the agents' host.
func (s *environment) connections() (n int, err error) {
	var text []byte
	err = s.nodes.Do(func() error {
		text, err = os.ReadFile("/proc/thread-self/net/tcp")
		return err
	})
	for l := range strings.Lines(string(text)) {
		if f := strings.Fields(l); len(f) > 3 && f[3] == "01" { // ESTABLISHED
			n++
		}
	}
	return n, err
}

// resourceUsage is the cost of an operation.
type resourceUsage struct {
	CPU   time.Duration // of the API server
	Bytes float64       // to the agents
	Took  time.Duration
}

// measureDuring measures the cost while f runs.
func (s *environment) measureDuring(f func() error) (u resourceUsage, err error) {
	bytes, err := s.received()
	if err != nil {
		return u, err
	}
	server := s.server()
	cpu, err := server.CPU()
	if err != nil {
		return u, err
	}
	begin := time.Now()
	if err := f(); err != nil {
		return u, err
	}
	u.Took = time.Since(begin)
	after, err := server.CPU()
	if err != nil {
		return u, err
	}
	got, err := s.received()
	u.CPU, u.Bytes = after-cpu, got-bytes
	return u, err
}

// bigService is a Service whose slice has the controller's maximum number of endpoints.
const bigService = "big"

const perSlice = 100

func (s *environment) fill(ctx context.Context, services, endpoints int) error {
	if err := loadgen.CreateServices(ctx, s.Cluster, 0, services, endpoints, 1); err != nil {
		return err
	}
	return loadgen.CreateService(ctx, s.Cluster, bigService, loadgen.ClusterIP(services), loadgen.Endpoints(services*endpoints, perSlice))
}
