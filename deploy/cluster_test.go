package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/kubelab"
	"github.com/sluice-proxy/sluice/host/kubelab/binaries"
	"github.com/sluice-proxy/sluice/host/need"
)

// cluster is a control plane in a node's network namespace, with two Nodes: n1 is that node, where the containers of
// sluice's Pods really run; on n2, and of all other Pods, nothing does, and they are said to be ready.
type cluster struct {
	*node
	*kubelab.Cluster
	tools string // folder of kubectl
	work  string // copy of deploy/, for the commands of the README
	runs  map[types.UID]*process
	last  *process // of a sluice
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	tools, err := binaries.Find(binaries.Cluster()...)
	need.OK(t, err)
	c := &cluster{node: newNode(t, ""), tools: tools, work: t.TempDir(), runs: map[types.UID]*process{}}
	c.Cluster, err = kubelab.Start(t.Context(), kubelab.Options{Host: c.lab.Node, Controllers: []string{"daemonset-controller", "job-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Cluster.Close)
	if err := os.CopyFS(filepath.Join(c.work, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"n1", "n2"} {
		if err := c.AddNode(t.Context(), kubelab.Node{
			Name: name, Zone: "a", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)})},
			Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	c.volumes()
	return c
}

// volumes makes what the kubelet mounts of a service account. The configuration comes with the ConfigMap.
func (c *cluster) volumes() {
	c.Helper()
	c.secret = c.TempDir()
	ca, err := os.ReadFile(c.CAFile())
	if err != nil {
		c.Fatal(err)
	}
	c.write(c.secret, "ca.crt", string(ca))
	c.write(c.secret, "namespace", "sluice-system")
}

// sh runs commands as somebody with a shell at the root of the checkout would, and plays the kubelets meanwhile.
func (c *cluster) sh(commands string) string {
	c.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = c.work
	cmd.Env = append(os.Environ(), "PATH="+c.tools+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(c.Dir(), "admin.kubeconfig"), "HOME="+c.work,
		"REGISTRY=registry.example.org/team", "TAG=v1", "NEXT=v2", "NODE=n1")
	p := c.launch(cmd)
	end := time.After(5 * time.Minute)
	for {
		select {
		case <-p.Ended():
			if err := p.Wait(); err != nil || strings.Contains(p.String(), "Warning:") {
				c.Fatalf("%s\n%v\n%s", commands, err, p)
			}
			return p.String()
		case <-end:
			c.Fatalf("%s\nstill runs\n%s\nsluice:\n%s", commands, p, c.last)
		case <-time.After(50 * time.Millisecond):
			c.kubelets()
		}
	}
}

// until plays the kubelets until something is so.
func (c *cluster) until(what string, so func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("%s: not after a minute\nsluice:\n%s", what, c.last)
		}
		c.kubelets()
	}
}

// pods are the nodes on which a DaemonSet has Pods, sorted, with the tags of their images.
func (c *cluster) pods(namespace, app string) (out []string) {
	c.Helper()
	list, err := c.Client.CoreV1().Pods(namespace).List(c.Context(), metav1.ListOptions{LabelSelector: app})
	if err != nil {
		c.Fatal(err)
	}
	for _, p := range list.Items {
		_, tag, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
		out = append(out, p.Spec.NodeName+" "+tag)
	}
	slices.Sort(out)
	return out
}

const sluicePods, kubeProxyPods = "app.kubernetes.io/name=sluice", "k8s-app=kube-proxy"

// kubelets does for each Pod of the two namespaces what is to be done next; the scheduler's part too.
func (c *cluster) kubelets() {
	c.Helper()
	for _, namespace := range []string{"sluice-system", "kube-system"} {
		list, err := c.Client.CoreV1().Pods(namespace).List(c.Context(), metav1.ListOptions{})
		if err != nil {
			c.Fatal(err)
		}
		for i := range list.Items {
			if err := c.kubelet(c.Context(), &list.Items[i]); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				c.Fatalf("Pod %s: %v", list.Items[i].Name, err)
			}
		}
	}
}

func (c *cluster) kubelet(ctx context.Context, pod *corev1.Pod) error {
	status := func(phase corev1.PodPhase, ready bool) error {
		if err := c.SetPodStatus(ctx, pod.Namespace, pod.Name, func(s *corev1.PodStatus) {
			s.Phase = phase
			if s.StartTime == nil {
				now := metav1.Now()
				s.StartTime = &now
			}
		}); err != nil {
			return err
		}
		return c.SetPodReady(ctx, pod.Namespace, pod.Name, ready)
	}
	job := pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	p, runs := c.runs[pod.UID]
	switch {
	case pod.Spec.NodeName == "":
		terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		return c.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			Target:     corev1.ObjectReference{Kind: "Node", Name: terms[0].MatchFields[0].Values[0]},
		}, metav1.CreateOptions{})
	case pod.DeletionTimestamp != nil:
		if runs {
			if err := p.End(syscall.SIGTERM, patience); err != nil && !job {
				c.Errorf("sluice ended: %v\n%s", err, p)
			}
			delete(c.runs, pod.UID)
		}
		return c.RemovePod(ctx, pod.Namespace, pod.Name)
	case pod.Status.Phase == corev1.PodPending && pod.Spec.NodeName == "n1" && pod.Namespace == "sluice-system":
		if err := c.startPod(ctx, pod); err != nil {
			return err
		}
		return status(corev1.PodRunning, false)
	case pod.Status.Phase == corev1.PodPending && job:
		return status(corev1.PodSucceeded, false)
	case pod.Status.Phase == corev1.PodPending:
		return status(corev1.PodRunning, true)
	case runs && job:
		delete(c.runs, pod.UID)
		if err := p.Wait(); err != nil {
			return fmt.Errorf("%w\n%s", err, p)
		}
		return status(corev1.PodSucceeded, false)
	case runs && !podReady(pod):
		select {
		case <-p.Ended():
			return fmt.Errorf("it has ended: %w\n%s", p.Wait(), p)
		default:
		}
		main := pod.Spec.Containers[0]
		if code, _ := c.get(main, main.ReadinessProbe); code == 200 {
			return status(corev1.PodRunning, true)
		}
	}
	return nil
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// startPod mounts what the Pod wants, runs its init containers, and starts its container.
func (c *cluster) startPod(ctx context.Context, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			config, err := c.Client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for name, text := range config.Data {
				c.write(c.config, name, withoutTableSize(text))
			}
		case v.Projected != nil:
			token, err := c.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
			if err != nil {
				return err
			}
			c.write(c.secret, "token", token)
		case v.HostPath == nil || v.HostPath.Path != "/run/sluice":
			return fmt.Errorf("volume %+v", v)
		}
	}
	for _, init := range pod.Spec.InitContainers {
		if out, err := c.run(c.container(init)); err != nil {
			return fmt.Errorf("init container %s: %w\n%s", init.Name, err, out)
		}
	}
	run := c.container(pod.Spec.Containers[0])
	run.Env = append(run.Env, "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443")
	c.runs[pod.UID] = c.start(run)
	if pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		c.last = c.runs[pod.UID]
	}
	return nil
}

// asKubeadm makes what kubeadm has of kube-proxy.
func (c *cluster) asKubeadm() {
	c.Helper()
	if err := c.Apply(c.Context(), strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: |
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    bindAddress: 0.0.0.0
    clientConnection:
      kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
    clusterCIDR: 10.244.0.0/17
    kind: KubeProxyConfiguration
  kubeconfig.conf: |
    apiVersion: v1
    kind: Config
    clusters:
    - cluster:
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
        server: SERVER
      name: default
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{operator: Exists}]
      containers: [{name: kube-proxy, image: "example.com/kube-proxy:k"}]
`, "SERVER", c.Config.Host)); err != nil {
		c.Fatal(err)
	}
}

// blocks are the commands of the README, by heading.
func blocks(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	heading, block := "", (*strings.Builder)(nil)
	for line := range strings.Lines(read(t, "README.md")) {
		switch h, isHeading := strings.CutPrefix(line, "## "); {
		case block != nil && line == "```\n":
			out[heading] = append(out[heading], block.String())
			block = nil
		case block != nil:
			block.WriteString(line)
		case line == "```sh\n":
			block = new(strings.Builder)
		case isHeading:
			heading = strings.TrimSpace(h)
		}
	}
	return out
}

// TestTheREADMEInstallsUpgradesRollsBackAndUninstalls runs its commands, in their order, and looks at what came of it.
func TestTheREADMEInstallsUpgradesRollsBackAndUninstalls(t *testing.T) {
	c := newCluster(t)
	c.asKubeadm()
	c.shop()
	// So that rollouts are quick.
	c.sh(`sed -i 's/minReadySeconds: 10/minReadySeconds: 1/; s/maxUnavailable: 10%/maxUnavailable: 100%/' deploy/kustomize/base/daemonset.yaml`)
	c.until("kube-proxy on both nodes", func() bool { return fmt.Sprint(c.pods("kube-system", kubeProxyPods)) == "[n1 k n2 k]" })

	todo := blocks(t)
	next := func(heading string) string {
		t.Helper()
		if len(todo[heading]) == 0 {
			t.Fatalf("README: no (more) commands under %q", heading)
		}
		commands := todo[heading][0]
		if todo[heading] = todo[heading][1:]; len(todo[heading]) == 0 {
			delete(todo, heading)
		}
		return c.sh(commands)
	}
	expect := func(when, proxies, sluices string) {
		t.Helper()
		if got := fmt.Sprint(c.pods("kube-system", kubeProxyPods)); got != proxies {
			t.Errorf("%s: kube-proxy on %s, want %s", when, got, proxies)
		}
		if got := fmt.Sprint(c.pods("sluice-system", sluicePods)); got != sluices {
			t.Errorf("%s: sluice on %s, want %s", when, got, sluices)
		}
	}

	out := next("Install")
	for _, want := range []string{"image: registry.example.org/team/sluice:v1", "server: " + c.Config.Host, "clusterCIDR: 10.244.0.0/17", "sluice.dev/proxy: sluice"} {
		if !strings.Contains(out, want) {
			t.Errorf("the overlay has no %q:\n%s", want, out)
		}
	}
	next("Install")
	expect("prepared", "[n1 k n2 k]", "[]")
	c.leftovers(true)
	next("Install")
	expect("one node", "[n2 k]", "[n1 v1]")
	c.answers("one node")
	c.until("kube-proxy's table gone", func() bool { return !c.leftovers(false) })
	c.says(c.last, "removed what kube-proxy had left")
	if bad := complaints(t, c.last.String()); len(bad) > 0 {
		t.Errorf("with these rights it lacks something:\n%s", strings.Join(bad, ""))
	}
	c.overlays()
	next("Install")
	expect("all nodes", "[]", "[n1 v1 n2 v1]")
	c.answers("all nodes")
	if out := next("Look"); !strings.Contains(out, "Starting") {
		t.Errorf("no Event of a start:\n%s", out)
	}
	next("Change the configuration")
	c.answers("changed")
	if !strings.Contains(c.last.String(), `"messages":0`) {
		t.Errorf("the new Pod has written:\n%s", c.last)
	}
	next("Upgrade")
	expect("upgraded", "[]", "[n1 v2 n2 v2]")
	next("Upgrade")
	expect("back", "[]", "[n1 v1 n2 v1]")
	c.answers("back")
	next("Roll back to kube-proxy")
	expect("rolled back", "[n1 k n2 k]", "[]")
	if _, err := c.client.Ask("tcp", vip, 200*time.Millisecond); err == nil {
		t.Error("cleaned up, and the Service still answers")
	}
	next("Uninstall")
	c.until("nothing left", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "sluice-system", metav1.GetOptions{})
		_, rerr := c.Client.RbacV1().ClusterRoles().Get(t.Context(), "sluice", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(rerr)
	})
	if len(todo) > 0 {
		t.Errorf("README: commands that nobody has tried: %v", todo)
	}
}

// leftovers makes a table as kube-proxy leaves one behind, if wanted, and tells whether there is one.
func (c *cluster) leftovers(make bool) (found bool) {
	c.Helper()
	k, err := nftables.New(nftables.WithNetNSFd(c.lab.Node.Fd()))
	if err != nil {
		c.Fatal(err)
	}
	if make {
		k.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "kube-proxy"})
		if err := k.Flush(); err != nil {
			c.Fatal(err)
		}
	}
	list, err := k.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		c.Fatal(err)
	}
	return slices.ContainsFunc(list, func(t *nftables.Table) bool { return t.Name == "kube-proxy" })
}

// shop is a Service with two Pods.
func (c *cluster) shop() {
	c.Helper()
	if err := c.AddNamespace(c.Context(), "shop"); err != nil {
		c.Fatal(err)
	}
	if err := c.Apply(c.Context(), `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`); err != nil {
		c.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		if err := c.AddPod(c.Context(), kubelab.Pod{
			Namespace: "shop", Name: fmt.Sprint("web-", i), Labels: map[string]string{"app": "web"}, Node: "n1",
			Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.244.0.", i))}, Ready: true,
		}); err != nil {
			c.Fatal(err)
		}
	}
}

// overlays has the API server look at each one, strictly, and at its configuration in the image.
func (c *cluster) overlays() {
	c.Helper()
	c.sh(`for c in no-init some-nodes; do
  mkdir deploy/kustomize/overlays/with-$c
  printf 'resources: [../../base]\ncomponents: [../../components/%s]\n' $c > deploy/kustomize/overlays/with-$c/kustomization.yaml
done`)
	list, err := filepath.Glob(filepath.Join(c.work, "deploy/kustomize/overlays/*"))
	if err != nil || len(list) < 6 {
		c.Fatal(list, err)
	}
	for _, dir := range append(list, filepath.Join(c.work, "deploy/kustomize/base")) {
		c.sh("kubectl apply --server-side --force-conflicts --validate=strict --warnings-as-errors --dry-run=server -k " + dir)
		config := filepath.Join(dir, "sluice.yaml")
		if _, err := os.Stat(config); errors.Is(err, os.ErrNotExist) {
			continue
		}
		check := c.container(daemonSet(c.T).Spec.Template.Spec.Containers[0])
		check.Args = []string{"/sluice", "config", "check", "/etc/sluice/sluice.yaml"} // loads the plugins, by their paths
		at := slices.IndexFunc(check.Mounts, func(m mount) bool { return m.To == "/etc/sluice" })
		check.Mounts[at].From = dir
		if out, err := c.run(check); err != nil || strings.Contains(out, "warning") && !strings.HasSuffix(dir, "base") {
			c.Errorf("%s: %v\n%s", config, err, out)
		}
	}
}
