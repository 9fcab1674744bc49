package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// startTimeout limits each step of the start; it is generous for slow machines.
const startTimeout = 8 * time.Minute

// Options of a cluster. The zero value runs it on this process's own loopback interface.
type Options struct {
	// Host is the namespace that the control plane runs in; nil: this process's own.
	Host *testnet.Host
	// Addr is the address of Host at which others reach the API server, which listens on all of them. Not valid: Host's
	// first, or else 127.0.0.1, and then the Service "kubernetes" has no endpoint.
	Addr netip.Addr
	// Port of the API server; 0: a free one.
	Port uint16
	// Services are the ranges of cluster IPs, at most one a family. Default: 10.96.0.0/16 and fd00:96::/108.
	Services []netip.Prefix
	// Pods are the ranges of Pods of a cluster with kubelets, at most one a family: all controllers run, each Node is given a
	// part of the ranges, and API server and kubelets authenticate each other (ServerCertificate).
	Pods []netip.Prefix
	// Dir receives the cluster's files, and is kept by Close; "": a temporary one.
	Dir string
	// Controllers to run in addition to those that a proxy needs, by kube-controller-manager's names.
	Controllers []string
	// NoControllers leaves the controller manager out, where the test makes every EndpointSlice itself.
	NoControllers bool
	// Audit names users whose requests are recorded, for Requests.
	Audit []string
}

// controllers returns the controllers that tests need: for EndpointSlices, namespaces and Pods.
func controllers() []string {
	return []string{
		"endpointslice-controller", "endpointslice-mirroring-controller", "namespace-controller", "serviceaccount-controller",
		"garbage-collector-controller", "service-cidr-controller", "root-ca-certificate-publisher-controller",
	}
}

// Cluster is a running control plane.
type Cluster struct {
	// Config is the administrator's, who may do everything; Client is made of it. Neither limits its rate.
	Config *rest.Config
	Client *kubernetes.Clientset

	options  Options
	services []netip.Prefix
	addr     netip.AddrPort // of the API server
	bin, dir string
	ca       *authority

	etcd, apiserver, manager *process
	more                     []*process // Run's
}

// Start starts a control plane and waits until it is ready, 3 to 5 s. The error is a *binaries.Missing if the programs
// have not been built. The caller must call Close.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	bin, err := binaries.Find(binaries.Cluster()...)
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: o, bin: bin, services: o.Services, dir: o.Dir}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "testcluster-"); err != nil {
			return nil, err
		}
	} else if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		err = fmt.Errorf("testcluster: %w\n%s", err, c.Logs())
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if len(c.services) == 0 {
		c.services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}
	}
	addr := c.options.Addr
	if !addr.IsValid() && c.options.Host != nil && len(c.options.Host.Addrs) > 0 {
		addr = c.options.Host.Addrs[0]
	}
	if !addr.IsValid() {
		addr = netip.MustParseAddr("127.0.0.1")
	}
	ports, err := c.freePorts(3)
	if err != nil {
		return err
	}
	if c.options.Port != 0 {
		ports[0] = c.options.Port
	}
	c.addr = netip.AddrPortFrom(addr, ports[0])
	if err := c.credentials(); err != nil {
		return err
	}
	if err := c.admin(); err != nil {
		return err
	}
	client, peer := fmt.Sprint("http://127.0.0.1:", ports[1]), fmt.Sprint("http://127.0.0.1:", ports[2])
	c.etcd = c.process(binaries.Etcd,
		"--name=lab", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--quota-backend-bytes=8589934592",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=lab="+peer, "--log-level=warn")
	if err := c.etcd.start(); err != nil {
		return err
	}
	args, err := c.apiServerArgs(client)
	if err != nil {
		return err
	}
	c.apiserver = c.process(binaries.APIServer, args...)
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if c.options.NoControllers {
		return nil
	}
	config, err := c.UserKubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	c.manager = c.process(binaries.ControllerManager, c.managerArgs(config)...)
	if err := c.manager.start(); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// freePorts returns unused ports of the cluster's network namespace.
func (c *Cluster) freePorts(n int) (ports []uint16, err error) {
	err = inNamespace(c.options.Host, func() error {
		for range n {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return fmt.Errorf("find a free port: %w", err)
			}
			defer l.Close() // all at once: n different ones
			ports = append(ports, l.Addr().(*net.TCPAddr).AddrPort().Port())
		}
		return nil
	})
	return ports, err
}

func (c *Cluster) process(name string, args ...string) *process {
	return &process{
		name: name, path: filepath.Join(c.bin, name), args: args,
		log: filepath.Join(c.dir, name+".log"), host: c.options.Host,
	}
}

// Run starts another program of the control plane in its namespace, a scheduler for example. Its log is beside the others', and
// Close ends it.
func (c *Cluster) Run(name, path string, args ...string) error {
	p := c.process(name, args...)
	p.path = path
	if err := p.start(); err != nil {
		return err
	}
	c.more = append(c.more, p)
	return nil
}

// Dir returns the cluster's own directory.
func (c *Cluster) Dir() string { return c.dir }

// Addr returns the address of the API server.
func (c *Cluster) Addr() netip.AddrPort { return c.addr }

// WaitReady waits until the API server is ready and the controllers are working.
func (c *Cluster) WaitReady(ctx context.Context) error {
	if err := c.waitAPIServer(ctx); err != nil {
		return err
	}
	if c.manager == nil {
		return nil
	}
	return c.awaitNamespace(ctx, metav1.NamespaceDefault)
}

// awaitNamespace waits for a namespace's default service account, without which Pods cannot be created.
func (c *Cluster) awaitNamespace(ctx context.Context, name string) error {
	return c.await(ctx, c.manager, "service account of namespace "+name, func(ctx context.Context) (bool, error) {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}

// AddNamespace creates a namespace unless it exists, and waits until Pods can be created in it.
func (c *Cluster) AddNamespace(ctx context.Context, name string) error {
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, namespace(name), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("Namespace %s: create: %w", name, err)
	}
	if c.manager == nil {
		return nil
	}
	return c.awaitNamespace(ctx, name)
}

// await polls until done reports true, as long as process p is running.
func (c *Cluster) await(ctx context.Context, p *process, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if !p.running() {
			err = errors.Join(err, fmt.Errorf("%s has ended: %w", p.name, p.life.Wait()))
		} else {
			select {
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
			case <-time.After(20 * time.Millisecond):
				continue
			}
		}
		return fmt.Errorf("wait for %s: %w", what, err)
	}
}

// Close stops all programs and removes the cluster's directory, unless it is the caller's or SLUICE_TESTCLUSTER_KEEP is set.
func (c *Cluster) Close() {
	for _, p := range slices.Backward(c.programs()) {
		p.kill()
	}
	if c.options.Dir == "" && os.Getenv("SLUICE_TESTCLUSTER_KEEP") == "" {
		_ = os.RemoveAll(c.dir)
	}
}
