package deploy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// asKubeadm creates kube-proxy's ConfigMap and DaemonSet as kubeadm does.
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

// TestReadmeCommands runs the commands of the README in order and checks their effects: installation, upgrade, rollback and
// removal.
func TestReadmeCommands(t *testing.T) {
	c := newCluster(t)
	c.asKubeadm()
	c.shop()
	// Make rollouts fast.
	c.sh(`sed -i 's/minReadySeconds: 10/minReadySeconds: 1/; s/maxUnavailable: 10%/maxUnavailable: 100%/' deploy/kustomize/base/daemonset.yaml`)
	c.until("kube-proxy on both nodes", func() bool { return fmt.Sprint(c.pods("kube-system", kubeProxyPods)) == "[n1 k n2 k]" })

	todo := realcluster.Blocks(read(t, "README.md"))
	next := func(heading string) string {
		t.Helper()
		if len(todo[heading]) == 0 {
			t.Fatalf("README: no more commands under %q", heading)
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
	for _, want := range []string{"image: registry.example.org/team/sluice:v1", "server: " + c.Config.Host, "clusterCIDR: 10.244.0.0/17", "key: sluice.dev/proxy"} {
		if !strings.Contains(out, want) {
			t.Errorf("overlay without %q:\n%s", want, out)
		}
	}
	next("Install")
	expect("prepared", "[n1 k n2 k]", "[]")
	c.leftovers(true)
	next("Install")
	expect("one node", "[n2 k]", "[n1 v1]")
	c.answers("one node")
	c.until("kube-proxy's table gone", func() bool { return !c.leftovers(false) })
	c.waitForLog(c.last, "removed kube-proxy leftovers")
	if bad := complaints(t, c.last.String()); len(bad) > 0 {
		t.Errorf("warnings with these rights:\n%s", strings.Join(bad, ""))
	}
	c.overlays()
	next("Install")
	expect("all nodes", "[]", "[n1 v1 n2 v1]")
	c.answers("all nodes")
	if out := next("Verify"); !strings.Contains(out, "Starting") {
		t.Errorf("no Starting Event:\n%s", out)
	}
	next("Change the configuration")
	c.answers("changed")
	if !strings.Contains(c.last.String(), `"netlink_messages":0`) {
		t.Errorf("the new Pod wrote to the kernel:\n%s", c.last)
	}
	next("Upgrade")
	expect("upgraded", "[]", "[n1 v2 n2 v2]")
	next("Upgrade")
	expect("back", "[]", "[n1 v1 n2 v1]")
	c.answers("back")
	next("Roll back to kube-proxy")
	expect("rolled back", "[n1 k n2 k]", "[]")
	if _, err := c.client.Ask("tcp", vip, 200*time.Millisecond); err == nil {
		t.Error("the Service still responds after cleanup")
	}
	if out := c.sh("kubectl get nodes -l sluice.dev/proxy -o name"); out != "" {
		t.Errorf("nodes with a label after the rollback:\n%s", out)
	}
	c.sh("sh deploy/preflight.sh && kubectl label node n2 sluice.dev/proxy=sluice")
	if out := c.sh("! sh deploy/preflight.sh 2>&1"); !strings.Contains(out, "\nnode/n2\n") || strings.Contains(out, "node/n1") {
		t.Errorf("preflight.sh accepts the labels of an earlier installation:\n%s", out)
	}
	next("Uninstall")
	c.until("nothing left", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(t.Context(), "sluice-system", metav1.GetOptions{})
		_, rerr := c.Client.RbacV1().ClusterRoles().Get(t.Context(), "sluice", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(rerr)
	})
	if len(todo) > 0 {
		t.Errorf("README: commands not tested: %v", todo)
	}
}

// leftovers optionally creates a table as kube-proxy leaves it behind, and reports whether one exists.
func (c *cluster) leftovers(create bool) (found bool) {
	c.Helper()
	k, err := nftables.New(nftables.WithNetNSFd(c.lab.Node.Fd()))
	if err != nil {
		c.Fatal(err)
	}
	if create {
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

// shop creates a Service with two Pods.
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
		if err := c.AddPod(c.Context(), testcluster.Pod{
			Namespace: "shop", Name: fmt.Sprint("web-", i), Labels: map[string]string{"app": "web"}, Node: "n1",
			Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.244.0.", i))}, Ready: true,
		}); err != nil {
			c.Fatal(err)
		}
	}
}

// overlays validates each overlay with the API server (strict, dry run), and its configuration with sluice in the image.
func (c *cluster) overlays() {
	c.Helper()
	c.sh(`for c in no-init some-nodes pods ipvs-modules modules-configmap modules-image pull-secret prometheus kubectl; do
  mkdir deploy/kustomize/overlays/with-$c
  printf 'resources: [../../base]\ncomponents: [../../components/%s]\n' $c > deploy/kustomize/overlays/with-$c/kustomization.yaml
done
cd deploy/kustomize/overlays/with-modules-configmap
head -c 700000 /dev/urandom > near.wasm.gz # as large as a bundled plugin
printf 'configMapGenerator: [{name: sluice-modules, namespace: sluice-system, files: [near.wasm.gz], options: {disableNameSuffixHash: true}}]\n' >> kustomization.yaml`)
	list, err := filepath.Glob(filepath.Join(c.work, "deploy/kustomize/overlays/*"))
	if err != nil || len(list) < 10 {
		c.Fatal(list, err)
	}
	for _, dir := range append(list, filepath.Join(c.work, "deploy/kustomize/base")) {
		what := "-k " + dir
		if strings.HasSuffix(dir, "with-prometheus") {
			what = "-f " + c.withoutOperator(dir)
		}
		c.sh("kubectl apply --server-side --force-conflicts --validate=strict --warnings-as-errors --dry-run=server " + what)
		config := filepath.Join(dir, "sluice.yaml")
		if _, err := os.Stat(config); errors.Is(err, os.ErrNotExist) {
			continue
		}
		check := c.container(daemonSet(c.T).Spec.Template.Spec.Containers[0])
		check.Args = []string{"/sluice", "config", "check", "/etc/sluice/sluice.yaml"} // also loads the plugins
		at := slices.IndexFunc(check.Mounts, func(m mount) bool { return m.To == "/etc/sluice" })
		check.Mounts[at].From = dir
		if out, err := c.run(check); err != nil || strings.Contains(out, "warning") && !strings.HasSuffix(dir, "base") {
			c.Errorf("%s: %v\n%s", config, err, out)
		}
	}
}

// withoutOperator returns a file with the objects of an overlay without those of the Prometheus Operator, whose types the API server does not
// have, and checks that there are these.
func (c *cluster) withoutOperator(dir string) string {
	c.Helper()
	var kept []string
	operator := 0
	for object := range strings.SplitSeq(c.sh("kubectl kustomize "+dir), "\n---\n") {
		if strings.HasPrefix(object, "apiVersion: monitoring.coreos.com/v1\n") {
			operator++
		} else {
			kept = append(kept, object)
		}
	}
	all := strings.Join(kept, "\n---\n")
	if operator != 2 || !strings.Contains(all, "name: metrics\n") {
		c.Fatalf("%s: %d objects of the operator, and\n%s", dir, operator, all)
	}
	file := filepath.Join(c.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(all), 0o644); err != nil {
		c.Fatal(err)
	}
	return file
}
