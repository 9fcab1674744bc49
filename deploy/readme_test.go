package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// TestOverlayStepIsRepeatable runs the first step of the installation again and again: what has been edited meanwhile stays.
func TestOverlayStepIsRepeatable(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	install := realcluster.Blocks(string(page))["Install"]
	c := newCluster(t)
	c.sh(`kubectl -n kube-system create configmap kube-proxy --from-literal=kubeconfig.conf='server: https://192.0.2.7:6443' --from-literal=config.conf='clusterCIDR: 10.9.0.0/16'`)
	step := func(tag string) string { return c.sh("REGISTRY=registry.example\nTAG=" + tag + "\n" + install[0]) }
	edit := func(name, commands string) { c.sh("cd deploy/kustomize/overlays/mine\n" + commands + " " + name) }
	expect := func(when, text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if strings.Count(text, w) != 1 {
				t.Errorf("%s: %q is there %d times, want once:\n%s", when, w, strings.Count(text, w), text)
			}
		}
	}
	some := `sluice.dev/proxy: sluice`
	first := []string{"server: https://192.0.2.7:6443", "clusterCIDR: 10.9.0.0/16"}
	expect("first", step("v1"), append(first, some)...)
	expect("again", step("v1"), append(first, some)...)
	edit("sluice.yaml", "sed -i 's|192.0.2.7|192.0.2.8|'")
	edit("kustomization.yaml", "sed -i '/^components:/a - ../../components/kubectl'")
	own := []string{"server: https://192.0.2.8:6443", "clusterCIDR: 10.9.0.0/16", "containerPort: 10252"}
	out := step("54674355")
	expect("edited, with another tag", out, append(own, some)...)
	if !strings.Contains(out, "image: registry.example/sluice:54674355\n") {
		t.Errorf("another tag:\n%s", out)
	}
	_, last, _ := strings.Cut(install[3], "sed ")
	drop, _, _ := strings.Cut("sed "+last, "\n")
	c.sh(drop)
	out = c.sh("kubectl kustomize deploy/kustomize/overlays/mine")
	expect("all nodes", out, own...)
	if strings.Contains(out, some) {
		t.Errorf("all nodes: still only those with the label:\n%s", out)
	}
	expect("after all nodes", step("54674355"), append(own, some)...)
	if _, err := os.Stat(filepath.Join(c.work, "deploy/kustomize/overlays/mine/kubeadm")); err == nil {
		t.Error("the overlay is in itself")
	}
}
