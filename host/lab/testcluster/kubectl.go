package testcluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// Kubectl runs kubectl as the administrator, unless the arguments have a --kubeconfig, and returns its output. The error
// contains its standard error.
func (c *Cluster) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, binaries.Kubectl), args...)
	cmd.Env = []string{"HOME=" + c.dir, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + filepath.Join(c.dir, "admin.kubeconfig")}
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := inNamespace(c.options.Host, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, &errs)
	}
	return out.String(), err
}

// Apply runs kubectl apply with manifests.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.Kubectl(ctx, manifests, "apply", "-f", "-")
	return err
}
