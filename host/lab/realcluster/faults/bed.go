package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/load"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

const (
	namespace = "faults"
	nodePort  = 30080
	rate      = 100 // new connections a second of each client
	timeout   = 5 * time.Second
	before    = 5 * time.Second // of load, until something happens
)

// bed is a cluster with one Service of real Pods and two clients: a Pod, which connects to the ClusterIP, and a host outside,
// which connects to the NodePort of all workers.
type bed struct {
	*realcluster.Cluster
	proxy   realcluster.Proxy
	program string // of the clients
	pod     string // network namespace of the client Pod, on the first worker
}

// clientPod only has a network namespace. It stays when containerd or the kubelet does not answer.
const clientPod = `
apiVersion: v1
kind: Namespace
metadata: {name: faults}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: faults}
spec:
  nodeName: n1
  tolerations: [{operator: Exists}]
  containers: [{name: pause, image: "` + programs.Pause + `"}]
`

func (b *bed) prepare(ctx context.Context) error {
	set, err := programs.Find()
	if err != nil {
		return err
	}
	b.program = set.Load
	if b.proxy == realcluster.Sluice { // the policy for canaries reads labels of Pods
		if _, err := b.Kubectl(ctx, "", "apply", "-f", filepath.Join(b.Work, "deploy/kustomize/components/pods/rbac.yaml")); err != nil {
			return err
		}
	}
	if err := b.Apply(ctx, clientPod); err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, "wait", "pod/client", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	ip, err := b.kubectl(ctx, "get", "pod", "client", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	script := `for f in /run/netns/*; do nsenter --net=$f ip -o addr | grep -q " $1/" && echo $f; done; :`
	out, err := b.Node("n1").Exec(ctx, "sh", "-c", script, "sh", ip)
	if b.pod = strings.TrimSpace(out); err == nil && b.pod == "" {
		err = fmt.Errorf("no network namespace of the client Pod, %s", ip)
	}
	return err
}

// kubectl runs kubectl in the namespace of the Service.
func (b *bed) kubectl(ctx context.Context, args ...string) (string, error) {
	return b.Kubectl(ctx, "", append([]string{"-n", namespace}, args...)...)
}

// clients are the running clients.
type clients struct {
	began   time.Time
	outside *testnet.Program
	pod     *exec.Cmd
	out     [2]bytes.Buffer
	errs    [2]bytes.Buffer
}

// start starts the clients. Those outside do not connect to the workers in avoid.
func (b *bed) start(ctx context.Context, avoid string) (c *clients, err error) {
	ip, err := b.kubectl(ctx, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return nil, err
	}
	flags := []string{b.program, "connect", "-rate", fmt.Sprint(rate), "-timeout", timeout.String()}
	var targets []string
	for _, n := range b.Workers() {
		if n.Name != avoid {
			targets = append(targets, netip.AddrPortFrom(n.Addrs[0], nodePort).String())
		}
	}
	c = &clients{began: time.Now()}
	outside := exec.Command(flags[0], append(flags[1:], targets...)...)
	outside.Stdout, outside.Stderr = &c.out[0], &c.errs[0]
	if c.outside, err = b.Outside.Start(outside); err != nil {
		return nil, err
	}
	args := append([]string{"nsenter", "--net=" + b.pod, "--"}, append(flags, netip.AddrPortFrom(netip.MustParseAddr(ip), 80).String())...)
	c.pod, err = b.Node("n1").Command(context.WithoutCancel(ctx), args...)
	if err == nil {
		c.pod.Stdout, c.pod.Stderr, c.pod.WaitDelay = &c.out[1], &c.errs[1], 0
		err = c.pod.Start()
	}
	if err != nil {
		c.outside.Kill()
		return nil, err
	}
	return c, nil
}

// stop ends the clients and returns what both saw.
func (c *clients) stop() (*load.Result, error) {
	_ = syscall.Kill(-c.pod.Process.Pid, syscall.SIGTERM)
	errs := c.outside.End(syscall.SIGTERM, time.Minute)
	_ = c.pod.Wait() // nsenter ends by the signal too
	total := &load.Result{}
	for i := range c.out {
		var r load.Result
		if err := json.Unmarshal(c.out[i].Bytes(), &r); err != nil {
			return nil, errors.Join(fmt.Errorf("a client printed %q, %q: %w", &c.out[i], &c.errs[i], err), errs)
		}
		total.Add(&r)
	}
	return total, nil
}

// web is the Service's Deployment.
type web struct {
	replicas    int
	drain       time.Duration // that the server goes on after SIGTERM
	preStop     int           // seconds of sleep
	annotations string        // of the Service
	slowProbe   bool          // every 10 s, as is the default, and not every second
}

// manifest returns the Deployment and the Service. Each scenario has new Pods.
func (w web) manifest(name string, version int) string {
	lifecycle, period := "", 1
	if w.preStop > 0 {
		lifecycle = fmt.Sprintf("lifecycle: {preStop: {sleep: {seconds: %d}}}, ", w.preStop)
	}
	if w.slowProbe {
		period = 10
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web, track: %[1]s}}
  template:
    metadata: {labels: {app: web, track: %[1]s}, annotations: {version: "%[3]d"}}
    spec:
      terminationGracePeriodSeconds: 60
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]
      containers:
      - {name: web, image: "%[4]s", args: [serve, -drain, %[5]s], %[6]sreadinessProbe: {tcpSocket: {port: 8080}, periodSeconds: %[7]d}}
---
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {%[8]s}}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: %[9]d}]}
`, name, max(w.replicas, 1), version, programs.Load, w.drain, lifecycle, period, w.annotations, nodePort)
}

// deploy replaces the Service's Pods and waits until only the new ones are there.
func (b *bed) deploy(ctx context.Context, w web) error {
	if w.replicas == 0 {
		w.replicas = 6
	}
	if _, err := b.kubectl(ctx, "delete", "deployment,service", "--all", "--wait"); err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, "delete", "pod", "-l", "app=web", "--ignore-not-found", "--grace-period=1", "--wait"); err != nil {
		return err
	}
	if _, err := b.Kubectl(ctx, w.manifest("stable", 1), "-n", namespace, "apply", "-f", "-"); err != nil {
		return err
	}
	return b.Rollout(ctx, namespace, "deployment/stable")
}

// restart restarts the Deployment, one Pod after the other.
func (b *bed) restart(ctx context.Context) error {
	if _, err := b.kubectl(ctx, "rollout", "restart", "deployment/stable"); err != nil {
		return err
	}
	return b.Rollout(ctx, namespace, "deployment/stable")
}
