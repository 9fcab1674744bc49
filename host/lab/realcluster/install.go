package realcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Installation is how sluice is installed by the commands of deploy/README.md.
type Installation struct {
	Repo  string // sluice's work tree
	Image string // archive of the image, as `make image` makes it: bin/sluice-image.tar
	Tag   string // of the image in it
	// Config is added to the overlay's configuration: `mode: ipvs`, for example. What nodes need that are network namespaces is
	// added too.
	Config string
	// Components are added to the overlay, by their names in deploy/kustomize/components.
	Components []string
	// AtOnce replaces kube-proxy on all nodes at the same time, and not on one after the other.
	AtOnce bool
}

// Install imports the image on all nodes and runs the commands of deploy/README.md that replace kube-proxy.
func (c *Cluster) Install(ctx context.Context, in Installation) error {
	if err := c.AddImage(ctx, in.Image); err != nil {
		return err
	}
	c.Work = filepath.Join(c.config.Dir, "work")
	if err := os.RemoveAll(c.Work); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(c.Work, "deploy"), os.DirFS(filepath.Join(in.Repo, "deploy"))); err != nil {
		return fmt.Errorf("copy deploy/: %w", err)
	}
	nodes := []string{}
	for _, n := range c.Nodes {
		nodes = append(nodes, n.Name)
	}
	if in.AtOnce {
		nodes = []string{strings.Join(nodes, " ")}
	}
	steps, err := c.blocks(readme, "Install")
	if err != nil {
		return err
	}
	for i, step := range steps {
		on := []string{""}
		if strings.Contains(step, "$NODE") {
			on = nodes
		}
		for _, node := range on {
			if _, err := c.sh(ctx, step, "TAG="+in.Tag, "NODE="+node); err != nil {
				return fmt.Errorf("install sluice: %w", err)
			}
			c.logf("%s", strings.TrimSpace(fmt.Sprintf("deploy/README.md, Install, step %d %s", i+1, node)))
		}
		if i == 0 {
			if err := c.configure(in); err != nil {
				return err
			}
		}
	}
	return nil
}

// configure adds to the overlay that the first step makes.
func (c *Cluster) configure(in Installation) error {
	overlays := filepath.Join(c.Work, "deploy/kustomize/overlays")
	f, err := os.OpenFile(filepath.Join(overlays, "mine/sluice.yaml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "conntrack: {maxPerCore: 0, min: 0, tcpBeLiberal: %t}\n%s\n", c.config.Liberal, in.Config)
	if err := errors.Join(err, f.Close()); err != nil || len(in.Components) == 0 {
		return err
	}
	mine := filepath.Join(overlays, "mine/kustomization.yaml")
	text, err := os.ReadFile(mine)
	if err != nil {
		return err
	}
	list := "components:\n"
	for _, name := range in.Components {
		list += "- ../../components/" + name + "\n"
	}
	return os.WriteFile(mine, []byte(strings.Replace(string(text), "components:\n", list, 1)), 0o644)
}

// Upgrade imports another image of sluice on all nodes and runs the commands of deploy/README.md that upgrade to it.
func (c *Cluster) Upgrade(ctx context.Context, image, tag string) error {
	if err := c.AddImage(ctx, image); err != nil {
		return err
	}
	_, err := c.Block(ctx, "Upgrade", 1, "NEXT="+tag)
	return err
}

// Rollback runs the commands of deploy/README.md that bring kube-proxy back.
func (c *Cluster) Rollback(ctx context.Context) error {
	_, err := c.Block(ctx, "Roll back to kube-proxy", 1)
	return err
}

// Uninstall runs the commands of deploy/README.md that remove what Rollback leaves.
func (c *Cluster) Uninstall(ctx context.Context) error {
	_, err := c.Block(ctx, "Uninstall", 1)
	return err
}

// AddImage imports an image of sluice on all nodes.
func (c *Cluster) AddImage(ctx context.Context, archive string) error {
	err := c.parallel(func(n *Node) error { return n.Import(ctx, archive, programs.Registry+"/sluice") })
	if err != nil {
		return err
	}
	c.logf("sluice's image is on all nodes")
	return nil
}

// readme is the page that installations follow.
const readme = "deploy/README.md"

// Block runs the nth sh block, from 1, under a heading of deploy/README.md, in Work and outside of the nodes, and returns its
// output. The environment is added to.
func (c *Cluster) Block(ctx context.Context, heading string, n int, env ...string) (string, error) {
	return c.BlockOf(ctx, readme, heading, n, env...)
}

// BlockOf is Block for another page.
func (c *Cluster) BlockOf(ctx context.Context, page, heading string, n int, env ...string) (string, error) {
	blocks, err := c.blocks(page, heading)
	if err != nil {
		return "", err
	}
	if n > len(blocks) {
		return "", fmt.Errorf("%s has %d sh blocks under %q", page, len(blocks), heading)
	}
	return c.sh(ctx, blocks[n-1], env...)
}

// blocks returns the sh blocks under a heading of a page.
func (c *Cluster) blocks(page, heading string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(c.Work, page))
	if err != nil {
		return nil, err
	}
	out := Blocks(string(text))[heading]
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no sh blocks under %q", page, heading)
	}
	return out, nil
}

// Blocks returns the sh blocks of a page in Markdown, by the headings of the second level that they are under.
func Blocks(page string) map[string][]string {
	out := map[string][]string{}
	heading, block := "", (*strings.Builder)(nil)
	for line := range strings.Lines(page) {
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

func (c *Cluster) sh(ctx context.Context, commands string, env ...string) (string, error) {
	var out testnet.Log
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = c.Work
	cmd.Env = append([]string{
		"PATH=" + c.Tools + ":" + os.Getenv("PATH"), "KUBECONFIG=" + c.Kubeconfig(), "HOME=" + c.Work, "REGISTRY=" + programs.Registry,
	}, env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	p, err := c.Outside.Start(cmd)
	if err == nil {
		err = p.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%w:\n%s\n%s", err, commands, &out)
	}
	return out.String(), nil
}
