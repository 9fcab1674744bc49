package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// environment is a control plane on its own host and a host for all agents.
type environment struct {
	net     *testnet.Lab
	nodes   *testnet.Host
	cluster *testcluster.Cluster
	dir     string // of the agents' kubeconfigs
}

// All agents are one user, like the Pods of a DaemonSet: API priority and fairness classifies by user.
const user = "system:serviceaccount:kube-system:sluice"

func newEnvironment(ctx context.Context, agents int) (s *environment, err error) {
	s = &environment{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "scaletest-"); err != nil {
		return s, err
	}
	if s.net, err = testnet.New(); err != nil {
		return s, err
	}
	api, err := s.net.AddHost("api", netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		return s, err
	}
	if s.nodes, err = s.net.AddHost("nodes", netip.MustParseAddr("192.0.2.2")); err != nil {
		return s, err
	}
	if s.cluster, err = testcluster.Start(ctx, testcluster.Options{Host: api, NoControllers: true}); err != nil {
		return s, err
	}
	_, err = s.cluster.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		return s, fmt.Errorf("ClusterRoleBinding sluice: create: %w", err)
	}
	for i := range agents {
		// A certificate each: client-go lets those with the same credentials share a connection.
		path, err := s.cluster.UserKubeconfig(user, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err == nil {
			err = os.Rename(path, kubeconfig(s.dir, i))
		}
		if err != nil {
			return s, err
		}
	}
	return s, s.cluster.Parallel(ctx, agents, func(ctx context.Context, i int) error {
		addr := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		return s.cluster.AddNode(ctx, testcluster.Node{Name: nodeName(i), Zone: "zone-0", Addrs: []netip.Addr{addr}})
	})
}

func (s *environment) close() {
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.net != nil {
		s.net.Close()
	}
	_ = os.RemoveAll(s.dir)
}

// server returns the API server's process, which changes with a restart.
func (s *environment) server() benchutil.Process {
	return benchutil.Process(s.cluster.PID(binaries.APIServer))
}

// received returns the bytes received by the agents' host and its number of connections. Segments that the kernel
// delivers as one packet count one header.
func (s *environment) received() (bytes float64, connections int, err error) {
	var dev, tcp []byte
	err = s.nodes.Do(func() (err error) {
		if dev, err = os.ReadFile("/proc/thread-self/net/dev"); err == nil {
			tcp, err = os.ReadFile("/proc/thread-self/net/tcp")
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	for l := range strings.Lines(string(tcp)) {
		if f := strings.Fields(l); len(f) > 3 && f[3] == "01" { // ESTABLISHED
			connections++
		}
	}
	for l := range strings.Lines(string(dev)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), "eth0:"); ok {
			bytes, err = strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return bytes, connections, err
		}
	}
	return 0, 0, errors.New("agents' host has no link eth0")
}

// resourceUsage is the cost of an operation.
type resourceUsage struct {
	CPU   time.Duration // of the API server
	Bytes float64       // to the agents
	Took  time.Duration
}

// measureDuring measures the cost while f runs.
func (s *environment) measureDuring(f func() error) (u resourceUsage, err error) {
	bytes, _, err := s.received()
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
	got, _, err := s.received()
	u.CPU, u.Bytes = after-cpu, got-bytes
	return u, err
}

// bigService is a Service whose slice has the controller's maximum number of endpoints.
const bigService = "big"

const perSlice = 100

func (s *environment) fill(ctx context.Context, services, endpoints int) error {
	if err := loadgen.CreateServices(ctx, s.cluster, 0, services, endpoints); err != nil {
		return err
	}
	return loadgen.CreateService(ctx, s.cluster, bigService, loadgen.ClusterIP(services), loadgen.Endpoints(services*endpoints, perSlice))
}
