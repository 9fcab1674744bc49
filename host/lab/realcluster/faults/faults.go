package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// faults are those of nodes and of the control plane. The server goes on for 10 s after SIGTERM, so that what fails is not its
// own doing.
func faults(o options) []*scenario {
	server := web{drain: 10 * time.Second}
	return []*scenario{
		{name: "nothing: a Deployment restarts", web: server, act: restarts(nothing)},
		{name: "proxy killed on each worker, a Deployment restarts", web: server, act: restarts(killProxies)},
		{name: "proxy killed for memory, 500 Services are created", web: server, act: memory, after: 10 * time.Second},
		{name: "kubelet killed on each worker, a Deployment restarts", web: server, act: restarts(kill("kubelet"))},
		{name: "containerd killed on each worker, a Deployment restarts", web: server, act: restarts(kill("containerd"))},
		{name: "node powered off, and on again", web: server, avoid: "n3", act: powerCycle, after: 20 * time.Second},
		{name: "kubelet killed for memory on each worker, a Deployment restarts", web: server, act: outOfMemory("kubelet")},
		{name: "containerd killed for memory on each worker, a Deployment restarts", web: server, act: outOfMemory("containerd")},
		{name: fmt.Sprintf("API server away for %s, Pods' processes end meanwhile", o.outage/5), web: server, act: outage(o.outage/5, (*bed).StopAPIServer, (*bed).StartAPIServer), after: 20 * time.Second},
		{name: fmt.Sprintf("etcd away for %s, Pods' processes end meanwhile", o.outage/5), web: server, act: outage(o.outage/5, (*bed).StopEtcd, (*bed).StartEtcd), after: 20 * time.Second},
		{name: fmt.Sprintf("API server and etcd away for %s, Pods' processes end meanwhile", o.outage), web: server, act: outage(o.outage, stopBoth, startBoth), after: 20 * time.Second},
		{name: fmt.Sprintf("API server away for %s, static Pods come and go meanwhile", o.outage/5), web: server, act: staticPods(o.outage / 5), after: 20 * time.Second, tell: staticPodServes},
		{name: "/run of a node full, the Service's Pods move to others", web: server, act: fullRun},
		{name: "a Node without addresses for 20 s, while its kubelet is stopped", web: server, act: noAddresses},
		{name: "a namespace with 500 Services deleted", web: server, act: deleteServices, after: 15 * time.Second},
		{name: "the DaemonSet's image broken, a Deployment restarts, then undone", web: server, act: brokenImage},
		{name: "a node drained", web: server, act: drain},
		{name: "a node drained, lifecycle, server goes on for 30 s", only: realcluster.Sluice,
			web: web{drain: 30 * time.Second, annotations: `sluice.dev/policy: staged`}, act: drain},
		{name: "a node drained, server ends at SIGTERM", act: drain},
		{name: "a node drained, server ends at SIGTERM, refused connections retried", only: realcluster.Sluice,
			web: web{annotations: "sluice.dev/refused-connections: retry"}, act: drain},
	}
}

func nothing(context.Context, *bed) error { return nil }

// restarts restarts the Deployment after a fault.
func restarts(fault func(context.Context, *bed) error) func(context.Context, *bed) (string, error) {
	return func(ctx context.Context, b *bed) (string, error) {
		err := fault(ctx, b)
		began := time.Now()
		if err == nil {
			err = b.restart(ctx)
		}
		return fmt.Sprintf("restart: %.0f s", time.Since(began).Seconds()), err
	}
}

func (b *bed) workers(f func(*realcluster.Node) error) (err error) {
	for _, n := range b.Workers() {
		err = errors.Join(err, f(n))
	}
	return err
}

// proxyName is the name of the process, of the DaemonSet and of its container.
func (b *bed) proxyName() string { return string(b.proxy) }

func (b *bed) proxyNamespace() string {
	if b.proxy == realcluster.Sluice {
		return "sluice-system"
	}
	return "kube-system"
}

func killProxies(ctx context.Context, b *bed) error {
	return b.workers(func(n *realcluster.Node) error {
		_, err := n.Exec(ctx, "pkill", "-9", "-x", b.proxyName())
		return err
	})
}

func kill(program string) func(context.Context, *bed) error {
	return func(_ context.Context, b *bed) error {
		return b.workers(func(n *realcluster.Node) error { return n.Kill(program, syscall.SIGKILL) })
	}
}

// memory limits the proxy's memory on the first worker to a little more than it uses.
func memory(ctx context.Context, b *bed) (string, error) {
	const script = `cd /sys/fs/cgroup/memory/$(sed -n 's/.*:memory://p' /proc/$(pidof -s $1)/cgroup) && echo $(($(cat memory.usage_in_bytes) + 262144)) >memory.limit_in_bytes`
	n := b.Node("n1")
	if _, err := n.Exec(ctx, "sh", "-c", script, "sh", b.proxyName()); err != nil {
		return "", err
	}
	before, err := n.Exec(ctx, "pidof", "-s", b.proxyName())
	if err != nil {
		return "", err
	}
	if err := b.manyServices(ctx); err != nil {
		return "", err
	}
	if err := b.Rollout(ctx, b.proxyNamespace(), "daemonset/"+b.proxyName()); err != nil {
		return "", err
	}
	after, err := n.Exec(ctx, "pidof", "-s", b.proxyName())
	if err == nil && after == before {
		err = errors.New("the proxy was not killed")
	}
	_, cleanup := b.Kubectl(ctx, "", "delete", "namespace", "many")
	return "", errors.Join(err, cleanup)
}

// outOfMemory leaves a program on each worker no memory beyond what it has, and restarts the Deployment, in which it is killed.
// Process 1 starts it again, without the limit.
func outOfMemory(program string) func(context.Context, *bed) (string, error) {
	const limit = `g=/sys/fs/cgroup/memory/tight && mkdir -p $g && pgrep -o -x $1 >$g/cgroup.procs && echo 65536 >$g/memory.limit_in_bytes`
	const undo = `g=/sys/fs/cgroup/memory/tight; echo -1 >$g/memory.limit_in_bytes; for p in $(cat $g/cgroup.procs); do echo $p >$g/../cgroup.procs; done; rmdir $g`
	return func(ctx context.Context, b *bed) (string, error) {
		killed := map[string]int{}
		err := b.workers(func(n *realcluster.Node) (err error) {
			if killed[n.Name], err = n.PID(program); err == nil {
				_, err = n.Exec(ctx, "sh", "-c", limit, "sh", program)
			}
			return err
		})
		began := time.Now()
		if err == nil {
			err = b.restart(ctx)
		}
		took := time.Since(began)
		return fmt.Sprintf("restart: %.0f s", took.Seconds()), errors.Join(err, b.workers(func(n *realcluster.Node) error {
			pid, err := n.PID(program)
			if err == nil && pid == killed[n.Name] {
				err = fmt.Errorf("%s of %s was not killed", program, n.Name)
			}
			_, undone := n.Exec(ctx, "sh", "-c", undo)
			return errors.Join(err, undone)
		}))
	}
}

// manyServices creates a namespace with 500 Services, which select the Pods of none.
func (b *bed) manyServices(ctx context.Context) error {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: many}\n")
	for i := range 500 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: many}\nspec: {selector: {app: none}, ports: [{port: 80}]}\n", i)
	}
	return b.Apply(ctx, text.String())
}

func deleteServices(ctx context.Context, b *bed) (string, error) {
	if err := b.manyServices(ctx); err != nil {
		return "", err
	}
	began := time.Now()
	_, err := b.Kubectl(ctx, "", "delete", "namespace", "many")
	return fmt.Sprintf("deleted in %.0f s", time.Since(began).Seconds()), err
}

// powerCycle resets the last worker, and measures until its NodePort answers.
func powerCycle(ctx context.Context, b *bed) (string, error) {
	n := b.Node("n3")
	began := time.Now()
	if err := n.Reset(ctx); err != nil {
		return "", err
	}
	at := netip.AddrPortFrom(n.Addrs[0], nodePort)
	dial := func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		c, err := b.Outside.Dial(ctx, "tcp", at)
		if err == nil {
			c.Close()
		}
		return err
	}
	for err := dial(); err != nil; err = dial() {
		if ctx.Err() != nil || time.Since(began) > 3*time.Minute {
			return "", fmt.Errorf("NodePort of %s: %w", n.Name, err)
		}
		wait(ctx, 20*time.Millisecond)
	}
	took := time.Since(began)
	if _, err := b.Kubectl(ctx, "", "wait", "node", "n3", "--for=condition=Ready", "--timeout=300s"); err != nil {
		return "", err
	}
	// Whole seconds.
	since, err := b.Kubectl(ctx, "", "-n", b.proxyNamespace(), "get", "pods", "--field-selector=spec.nodeName=n3", "-o",
		`jsonpath={.items[*].status.containerStatuses[?(@.name=="`+b.proxyName()+`")].state.running.startedAt}`)
	if err != nil {
		return "", err
	}
	started, err := time.Parse(time.RFC3339, since)
	return fmt.Sprintf("its NodePort answers after %.1f s; the proxy's container was started after %.0f s", took.Seconds(), started.Sub(began).Seconds()), err
}

// outage stops a part of the control plane, while Pods go without its knowledge: their processes are killed, and their kubelet
// starts others.
func outage(span time.Duration, stop func(*bed), start func(*bed, context.Context) error) func(context.Context, *bed) (string, error) {
	return func(ctx context.Context, b *bed) (string, error) {
		stop(b)
		end := time.Now().Add(span)
		killed := 0
		for time.Now().Before(end) && ctx.Err() == nil {
			n := b.Workers()[killed%len(b.Workers())]
			if _, err := n.Exec(ctx, "sh", "-c", "kill $(pgrep -x load | head -1)"); err != nil {
				return "", errors.Join(err, start(b, ctx))
			}
			killed++
			wait(ctx, min(30*time.Second, time.Until(end)))
		}
		if err := start(b, ctx); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d processes ended meanwhile", killed), b.restart(ctx)
	}
}

// staticPod is a server of the Service that the kubelet starts from a file, without the API server.
const staticPod = `
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: ` + namespace + `, labels: {app: web}}
spec:
  containers: [{name: web, image: "` + programs.Load + `", args: [serve], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}]
`

const staticPodFile = "/etc/kubernetes/manifests/static.yaml"

// staticPods removes the static Pod of the first worker while the API server is away, and creates one on the second.
func staticPods(span time.Duration) func(context.Context, *bed) (string, error) {
	const create = `mkdir -p $(dirname $1) && cd $(dirname $1) && printf %s "$2" >.new && mv .new $1`
	return func(ctx context.Context, b *bed) (string, error) {
		first, second := b.Node("n1"), b.Node("n2")
		if _, err := first.Exec(ctx, "sh", "-c", create, "sh", staticPodFile, staticPod); err != nil {
			return "", err
		}
		defer func() {
			_, _ = second.Exec(context.WithoutCancel(ctx), "rm", "-f", staticPodFile)
			_, _ = first.Exec(context.WithoutCancel(ctx), "rm", "-f", staticPodFile)
		}()
		// Its kubelet looks every 20 s.
		if err := b.until(ctx, time.Minute, "wait", "pod/static-n1", "--for=condition=Ready", "--timeout=10s"); err != nil {
			return "", err
		}
		wait(ctx, before)
		b.StopAPIServer()
		began := time.Now()
		_, removed := first.Exec(ctx, "rm", staticPodFile)
		_, created := second.Exec(ctx, "sh", "-c", create, "sh", staticPodFile, staticPod)
		wait(ctx, time.Until(began.Add(span)))
		if err := errors.Join(b.StartAPIServer(ctx), removed, created); err != nil {
			return "", err
		}
		began = time.Now()
		err := errors.Join(b.until(ctx, time.Minute, "wait", "pod/static-n2", "--for=condition=Ready", "--timeout=10s"),
			b.until(ctx, time.Minute, "wait", "pod/static-n1", "--for=delete", "--timeout=10s"))
		return fmt.Sprintf("the API server knows both after %.0f s", time.Since(began).Seconds()), err
	}
}

// until repeats a command of kubectl that can fail because its object does not exist yet.
func (b *bed) until(ctx context.Context, span time.Duration, args ...string) error {
	for end := time.Now().Add(span); ; wait(ctx, time.Second) {
		_, err := b.kubectl(ctx, args...)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
	}
}

func staticPodServes(r *row) string {
	return fmt.Sprintf("connections to the removed one %d, to the new one %d", r.Result.Servers["static-n1"], r.Result.Servers["static-n2"])
}

func stopBoth(b *bed) {
	b.StopAPIServer()
	b.StopEtcd()
}

func startBoth(b *bed, ctx context.Context) error {
	return errors.Join(b.StartEtcd(ctx), b.StartAPIServer(ctx))
}

// fullRun leaves no space in /run of the last worker, where the proxies have their state and containerd its own, while the
// Service's Pods leave it.
func fullRun(ctx context.Context, b *bed) (string, error) {
	n := b.Node("n3")
	if _, err := b.Kubectl(ctx, "", "cordon", n.Name); err != nil {
		return "", err
	}
	// A little more than is used, or it is refused; and then that.
	_, err := n.Exec(ctx, "sh", "-c", "mount -o remount,size=$(($(df --output=used -k /run | tail -1) + 1024))k /run && ! cat /dev/zero >/run/full")
	if err == nil {
		err = b.restart(ctx)
	}
	_, undone := n.Exec(ctx, "sh", "-c", "rm -f /run/full; mount -o remount,size=50% /run")
	_, uncordoned := b.Kubectl(ctx, "", "uncordon", n.Name)
	return "", errors.Join(err, undone, uncordoned)
}

// noAddresses removes the addresses of the first worker's Node, which its kubelet would write again.
func noAddresses(ctx context.Context, b *bed) (string, error) {
	n := b.Node("n1")
	if err := n.Kill("kubelet", syscall.SIGSTOP); err != nil {
		return "", err
	}
	_, err := b.Kubectl(ctx, "", "patch", "node", n.Name, "--subresource=status", "--type=json", "-p", `[{"op": "replace", "path": "/status/addresses", "value": []}]`)
	wait(ctx, 20*time.Second)
	return "", errors.Join(err, n.Kill("kubelet", syscall.SIGCONT))
}

// brokenImage rolls out an image that does not exist.
func brokenImage(ctx context.Context, b *bed) (string, error) {
	ns, ds := b.proxyNamespace(), "daemonset/"+b.proxyName()
	if _, err := b.Kubectl(ctx, "", "-n", ns, "set", "image", ds, "*=broken.invalid/proxy:1"); err != nil {
		return "", err
	}
	wait(ctx, 20*time.Second)
	err := b.restart(ctx)
	ready, failed := b.Kubectl(ctx, "", "-n", ns, "get", ds, "-o", "jsonpath={.status.numberReady} of {.status.desiredNumberScheduled}")
	_, undone := b.Kubectl(ctx, "", "-n", ns, "rollout", "undo", ds)
	if err = errors.Join(err, failed, undone); err != nil {
		return "", err
	}
	return "proxies ready meanwhile: " + ready, b.Rollout(ctx, ns, ds)
}

func drain(ctx context.Context, b *bed) (string, error) {
	began := time.Now()
	_, err := b.Kubectl(ctx, "", "drain", "n2", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
	took := time.Since(began)
	_, undone := b.Kubectl(ctx, "", "uncordon", "n2")
	return fmt.Sprintf("drain: %.0f s", took.Seconds()), errors.Join(err, undone, b.Rollout(ctx, namespace, "deployment/stable"))
}
