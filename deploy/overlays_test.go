package deploy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// cluster is a control plane in a node's network namespace.
type cluster struct {
	*node
	*testcluster.Cluster
	tools string // folder of kubectl
	work  string // copy of deploy/
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	tools, err := binaries.Find(binaries.Cluster()...)
	testenv.Require(t, err)
	c := &cluster{node: newNode(t, ""), tools: tools, work: t.TempDir()}
	c.Cluster, err = testcluster.Start(t.Context(), testcluster.Options{Host: c.lab.Node})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Cluster.Close)
	if err := errors.Join(os.CopyFS(filepath.Join(c.work, "deploy"), os.DirFS(".")), c.AddNamespace(t.Context(), "sluice-system")); err != nil {
		t.Fatal(err)
	}
	return c
}

// sh runs shell commands in the root of the checkout.
func (c *cluster) sh(commands string) string {
	c.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = c.work
	cmd.Env = append(os.Environ(), "PATH="+c.tools+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(c.Dir(), "admin.kubeconfig"), "HOME="+c.work)
	p := c.launch(cmd)
	if err := p.Wait(); err != nil || strings.Contains(p.String(), "Warning:") {
		c.Fatalf("%s\n%v\n%s", commands, err, p)
	}
	return p.String()
}

// TestOverlaysAreValid validates each overlay with an API server (strict, dry run), and its configuration with sluice in the
// image.
func TestOverlaysAreValid(t *testing.T) {
	c := newCluster(t)
	c.sh(`for c in no-init some-nodes pods namespaces ipvs-modules modules-configmap modules-image pull-secret prometheus kubectl controller; do
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

// withoutOperator returns a file with the objects of an overlay without those of the Prometheus Operator, whose types the API
// server does not have, and checks that there are these.
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
