package nodes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/helm"
)

// helm follows deploy/helm/README.md from kube-proxy to a policy that is in force, an upgrade from the release before, and back,
// under load. The release before is installed with its own charts, from its sources.
func (c *cluster) helm(previous string) {
	c.Helper()
	const page = "deploy/helm/README.md"
	path := "PATH=" + filepath.Dir(helm.Program(c)) + ":" + c.Tools + ":" + os.Getenv("PATH")
	commands, err := os.ReadFile(filepath.Join(c.Work, page))
	// The nodes are network namespaces, whose conntrack table has a fixed size.
	c.must(errors.Join(err, os.WriteFile(filepath.Join(previous, page), commands, 0o600),
		os.WriteFile(filepath.Join(previous, "mine.yaml"), []byte("config: {conntrack: {maxPerCore: 0, min: 0}}\n"), 0o600)))
	here := c.Work
	load := c.load()
	for i, step := range []string{"installation", "policy", "upgrade", "rollback", "back to kube-proxy"} {
		began := time.Now()
		if c.Work = here; step == "installation" {
			c.Work = previous
		}
		_, err := c.BlockOf(c.Context(), page, "From nothing to a policy, and back", i+1, path, "TAG="+previousTag, "NEXT="+c.install.Tag)
		c.must(err)
		c.Logf("Helm, %s: %.0f s", step, time.Since(began).Seconds())
		switch step {
		case "upgrade":
			c.expectAdopted("upgraded by Helm", c.install.Tag)
		case "rollback":
			c.expectAdopted("rolled back by Helm", previousTag)
		}
	}
	load.end("Helm", false)
	c.expectTables("uninstalled by Helm", "kube-proxy", "sluice")
	if out := c.kubectl("get", "all,serviceaccount,configmap", "-n", "sluice-system", "-l", "app.kubernetes.io/name", "-o", "name"); strings.Contains(out, "sluice") {
		c.Errorf("left by helm uninstall:\n%s", out)
	}
}
