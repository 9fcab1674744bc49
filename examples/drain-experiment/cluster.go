package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// The Service of the experiments.
const (
	serviceManifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
`
	port    = 8080 // of the Pods
	clients = 8    // addresses of the client, so that no source port is used twice
)

var vip = netip.MustParseAddrPort("10.96.0.10:80")

// cluster is a node with sluice, a client, the Pods of a Service, and what acts for the control plane and the kubelet.
type cluster struct {
	dir    string
	net    *testnet.Lab
	client *testnet.Host
	sluice *lab.Sluice
	// delay is the time from a change of a Pod until its EndpointSlice has reached the node.
	delay time.Duration

	mu      sync.Mutex
	pods    []*pod // that exist, in the order in which they were created
	created int

	slices  chan slice // to be written
	written sync.WaitGroup
	err     error // of writing; valid after written
}

// pod is a Pod of the Service.
type pod struct {
	name               string
	host               *testnet.Host
	program            *testnet.Program
	ready, terminating bool
}

// slice is a version of the EndpointSlice that reaches the node at a time.
type slice struct {
	at   time.Time
	text string
	done chan struct{} // closed when it is written, if not nil
}

// paths of the files that the experiments use.
type paths struct{ sluice, plugins string }

// newCluster starts a cluster without Pods. Its node runs sluice in a mode, with a policy for all Services: the chain of plugins,
// or the default rules if it is empty.
func newCluster(p paths, mode string, delay time.Duration, chain []step) (c *cluster, err error) {
	c = &cluster{delay: delay, slices: make(chan slice, 64)}
	c.written.Go(c.write)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
			c = nil
		}
	}()
	if c.dir, err = os.MkdirTemp("", "sluice-experiment-"); err != nil {
		return c, err
	}
	if c.net, err = testnet.New(netip.MustParseAddr("192.168.0.1")); err != nil {
		return c, err
	}
	if err := lab.ShortenConntrack(c.net.Node); err != nil {
		return c, err
	}
	var addrs []netip.Addr
	for i := range clients {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 244, 255, byte(i + 1)}))
	}
	if c.client, err = c.net.AddHost("client", addrs...); err != nil {
		return c, err
	}
	if err := os.Mkdir(c.path("cluster"), 0o755); err != nil {
		return c, err
	}
	if err := errors.Join(
		lab.ReplaceFile(c.path("cluster/service.yaml"), []byte(serviceManifest)),
		lab.ReplaceFile(c.path("cluster/slice.yaml"), []byte(c.manifest())),
		lab.ReplaceFile(c.path("sluice.yaml"), []byte(configuration(p.plugins, mode, chain))),
	); err != nil {
		return c, err
	}
	c.sluice, err = lab.StartSluice(c.net.Node, p.sluice, c.path("sluice.sock"), c.path("sluice.log"),
		"--source", c.path("cluster"), "--config", c.path("sluice.yaml"), "--checkpoint", c.path("checkpoint"), "--node", "n1")
	if err == nil {
		err = c.await("synced all services")
	}
	for i := range chain {
		if err == nil {
			err = c.await("loaded plugin", chain[i].plugin)
		}
	}
	return c, err
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// startTimeout bounds the start of sluice: minutes on a busy machine or a test kernel, where plugins are compiled.
const startTimeout = 5 * time.Minute

// await waits for a line of sluice's log.
func (c *cluster) await(words ...string) error {
	for end := time.Now().Add(startTimeout); time.Now().Before(end); {
		if lines, _ := c.sluice.LogLines(0, words...); len(lines) > 0 {
			return nil
		}
		select {
		case <-c.sluice.Ended():
			lines, _ := c.sluice.LogLines(0)
			return fmt.Errorf("sluice ended:\n%s", strings.Join(lines, "\n"))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("sluice did not log %q within %s", words, startTimeout)
}

// create creates a Pod with a server that runs, but is not ready.
func (c *cluster) create(s server) (*pod, error) {
	c.mu.Lock()
	c.created++
	number := c.created
	c.mu.Unlock()
	s.name = fmt.Sprintf("web-%d", number)
	p := &pod{name: s.name}
	addr := netip.AddrFrom4([4]byte{10, 244, byte(number >> 8), byte(number)})
	var err error
	if p.host, err = c.net.AddHost(fmt.Sprintf("web-%d", number), addr); err == nil {
		p.program, err = s.start(p.host, netip.AddrPortFrom(addr, port).String())
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = append(c.pods, p)
	return p, nil
}

// createReady creates n Pods that are ready, and waits until the node knows.
func (c *cluster) createReady(ctx context.Context, n int, s server) error {
	var all []*pod
	for range n {
		p, err := c.create(s)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	return c.ready(ctx, all...)
}

// ready makes Pods ready, and waits until the node knows.
func (c *cluster) ready(ctx context.Context, pods ...*pod) error {
	done := c.change(func() {
		for _, p := range pods {
			p.ready = true
		}
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// delete deletes a Pod as the kubelet does: after its preStop hook, which sleeps, the server gets SIGTERM. The EndpointSlice
// says meanwhile that the Pod terminates. delete returns when the server has ended.
func (c *cluster) delete(ctx context.Context, p *pod, preStop time.Duration) error {
	c.change(func() { p.ready, p.terminating = false, true })
	select {
	case <-time.After(preStop):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := p.program.End(syscall.SIGTERM, 2*time.Minute)
	c.change(func() { c.pods = slices.DeleteFunc(c.pods, func(other *pod) bool { return other == p }) })
	if err != nil {
		return fmt.Errorf("delete %s: %w", p.name, err)
	}
	return nil
}

// change changes the Pods. The EndpointSlice follows after the delay; the channel is closed when it is written.
func (c *cluster) change(f func()) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	s := slice{time.Now().Add(c.delay), c.manifest(), make(chan struct{})}
	c.slices <- s
	return s.done
}

// manifest returns the EndpointSlice.
func (c *cluster) manifest() string {
	var b strings.Builder
	b.WriteString(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`)
	known := 0
	for _, p := range c.pods {
		if !p.ready && !p.terminating {
			continue
		}
		known++
		fmt.Fprintf(&b, "- {addresses: [%s], conditions: {ready: %t, serving: true, terminating: %t}, nodeName: n1, targetRef: {kind: Pod, namespace: shop, name: %s}}\n",
			p.host.Addrs[0], p.ready, p.terminating, p.name)
	}
	if known == 0 {
		return strings.TrimSuffix(b.String(), "\n") + " []\n"
	}
	return b.String()
}

// write writes EndpointSlices when they are due.
func (c *cluster) write() {
	for s := range c.slices {
		time.Sleep(time.Until(s.at))
		c.err = errors.Join(c.err, lab.ReplaceFile(c.path("cluster/slice.yaml"), []byte(s.text)))
		close(s.done)
	}
}

// close stops and removes everything.
func (c *cluster) close() error {
	close(c.slices)
	c.written.Wait()
	err := c.err
	if c.sluice != nil {
		err = errors.Join(err, c.sluice.Stop())
	}
	for _, p := range c.pods {
		p.program.Kill()
	}
	if c.net != nil {
		c.net.Close()
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// step is a plugin of a chain, with settings in YAML's flow form.
type step struct{ plugin, settings string }

// configuration returns the configuration of sluice.
func configuration(plugins, mode string, chain []step) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
mode: %s
clusterCIDR: 10.244.0.0/16
metricsBindAddress: ''
healthzBindAddress: ''
`, mode)
	if len(chain) == 0 {
		return b.String()
	}
	b.WriteString("plugins:\n")
	for _, s := range chain {
		fmt.Fprintf(&b, "- {name: %s, file: %s}\n", s.plugin, filepath.Join(plugins, s.plugin+".wasm"))
	}
	b.WriteString("policies:\n- name: experiment\n  plugins:\n")
	for _, s := range chain {
		fmt.Fprintf(&b, "  - {name: %s, settings: %s}\n", s.plugin, s.settings)
	}
	b.WriteString("defaultPolicy: experiment\n")
	return b.String()
}
