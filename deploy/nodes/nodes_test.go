package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// cluster is a control plane and two workers. kube-proxy runs in it, as with kubeadm.
type cluster struct {
	*testing.T
	*realcluster.Cluster
	programs programs.Set
	install  realcluster.Installation
	wrong    []string // what Errorf was told
}

// Errorf is that of the test, which logs all again at its end: by then, the first one is pages away.
func (c *cluster) Errorf(format string, args ...any) {
	c.Helper()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
	c.T.Errorf(format, args...)
}

// newCluster starts a cluster, and builds sluice's image.
func newCluster(t *testing.T, config realcluster.Config) *cluster {
	set, err := programs.Find()
	testenv.Require(t, err)
	c := &cluster{T: t, programs: set}
	began := time.Now()
	built := make(chan error, 1)
	go func() { built <- c.build(t.TempDir()) }()
	t.Cleanup(func() {
		for _, text := range c.wrong {
			t.Logf("FAILED: %.500s", text)
		}
	})
	config.Dir, config.Workers, config.Programs, config.Log = filepath.Join(t.TempDir(), "cluster"), 2, set, t.Output()
	c.Cluster, err = realcluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.must(<-built)
	t.Logf("cluster and image after %s", time.Since(began).Round(time.Second))
	return c
}

// importImages imports the images of Kubernetes' network tests on all nodes.
func (c *cluster) importImages(tests programs.Suite) {
	c.Helper()
	archives, err := filepath.Glob(filepath.Join(tests.Images, "*.tar"))
	c.must(err)
	errs := make([]error, len(c.Nodes))
	var all sync.WaitGroup
	for i, n := range c.Nodes {
		all.Go(func() {
			for _, archive := range archives {
				errs[i] = errors.Join(errs[i], n.Import(c.Context(), archive, ""))
			}
		})
	}
	all.Wait()
	c.must(errors.Join(errs...))
}

// build builds the image, without compiled plugins, which nothing here uses.
func (c *cluster) build(dir string) error {
	c.install = realcluster.Installation{Repo: "../..", Image: filepath.Join(dir, "image.tar"), Tag: "v1"}
	cmd := exec.Command("go", "run", "./deploy/image", "-compiled", "", "-o", filepath.Join(dir, "image"), "-tar", c.install.Image, "-version", c.install.Tag)
	cmd.Dir = c.install.Repo
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image: %w\n%s", err, out)
	}
	return nil
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.Kubectl(c.Context(), "", args...)
	c.must(err)
	return out
}

func (c *cluster) block(heading string, n int, env ...string) string {
	c.Helper()
	out, err := c.Block(c.Context(), heading, n, env...)
	c.must(err)
	return out
}

// expectPods checks on which nodes the Pods of a namespace with a label run, and their images.
func (c *cluster) expectPods(when, namespace, label, want string) {
	c.Helper()
	got := c.kubectl("-n", namespace, "get", "pods", "-l", label, "--sort-by=.spec.nodeName",
		"-o", `jsonpath={range .items[*]}{.spec.nodeName} {.spec.containers[0].image}{"\n"}{end}`)
	if got = strings.TrimSpace(strings.ReplaceAll(got, programs.Registry+"/", "")); got != want {
		c.Errorf("%s: Pods of %s\n%s\nwant\n%s", when, namespace, got, want)
	}
}

const (
	kubeProxyPods = "k8s-app=kube-proxy"
	sluicePods    = "app.kubernetes.io/name=sluice"
)

// TestReadmeOnRealNodes runs the commands of deploy/README.md in order, under load: no new connection may fail, and no long one
// may be broken.
func TestReadmeOnRealNodes(t *testing.T) {
	tests, err := programs.FindSuite()
	testenv.Require(t, err)
	c := newCluster(t, realcluster.Config{Name: "nodes"})
	c.importImages(tests)
	c.install.Config = policy
	c.serve()

	load := c.load()
	c.must(c.Install(t.Context(), c.install))
	load.end("installation", false)
	c.expectPods("installed", "kube-system", kubeProxyPods, "")
	c.expectPods("installed", "sluice-system", sluicePods, "cp sluice:v1\nn1 sluice:v1\nn2 sluice:v1")
	c.noWarnings()
	if out := c.block("Verify", 1); !strings.Contains(out, "Starting") {
		c.Errorf("Verify: no Event Starting:\n%s", out)
	}
	c.expectTables("installed", "sluice", "kube-proxy")

	load = c.load()
	c.block("Change the configuration", 1)
	c.kubectl("-n", "sluice-system", "rollout", "status", "daemonset", "sluice", "--timeout=5m")
	load.end("rolling restart", false)
	if logs := c.logs(); strings.Count(logs, `"netlink_messages":0`) < len(c.Nodes) {
		c.Errorf("the new Pods wrote to the kernel:\n%s", logs)
	}

	previous := c.upgrades(t.TempDir())

	// Endpoints come and go meanwhile: stale rules would send connections to Pods that have ended.
	old := strings.Fields(c.kubectl("-n", "web", "get", "pods", "-l", "app=web", "-o", "name"))
	load = c.load()
	c.kubectl("-n", "web", "rollout", "restart", "deployment", "web")
	c.must(c.Rollback(t.Context()))
	c.kubectl("-n", "web", "rollout", "status", "deployment", "web", "--timeout=120s")
	c.kubectl(append([]string{"-n", "web", "wait", "--for=delete", "--timeout=60s"}, old...)...)
	load.end("rollback", true)
	c.expectPods("rolled back", "kube-system", kubeProxyPods, "cp kube-proxy:v1.36.3\nn1 kube-proxy:v1.36.3\nn2 kube-proxy:v1.36.3")
	c.expectPods("rolled back", "sluice-system", sluicePods, "")
	c.expectTables("rolled back", "kube-proxy", "sluice")
	for _, n := range c.Nodes {
		c.expectHealthCheck(n)
	}
	if out := c.kubectl("get", "nodes", "-l", "sluice.dev/proxy", "-o", "name"); out != "" {
		c.Errorf("nodes with a label after the rollback:\n%s", out)
	}
	c.must(c.Uninstall(t.Context()))
	if out := c.kubectl("get", "namespace,clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/name=sluice", "-o", "name"); out != "" {
		c.Errorf("left:\n%s", out)
	}

	c.oneNodeAndBack()
	c.helm(previous)
	c.preflight()

	// Last, as the whole suite begins more work beside them.
	c.must(c.Install(t.Context(), c.install))
	t.Run("terminating endpoints", func(t *testing.T) { c.suite(t, tests, terminating, skip, fewestTerminating) })
	t.Run("Kubernetes' network tests", func(t *testing.T) { c.suite(t, tests, focus, skip+"|"+terminating, fewest) })
}

// until waits until nothing is wrong.
func (c *cluster) until(within time.Duration, when string, wrong func() string) {
	c.Helper()
	began, text := time.Now(), ""
	for time.Since(began) < within {
		if text = wrong(); text == "" {
			c.Logf("%s: after %.0f s", when, time.Since(began).Seconds())
			return
		}
	}
	c.Errorf("%s:\n%s", when, text)
}

// oneNodeAndBack installs sluice on one node, and returns that to kube-proxy with the commands of deploy/README.md.
func (c *cluster) oneNodeAndBack() {
	c.Helper()
	c.block("Install", 1, "TAG="+c.install.Tag) // once more, on the overlay of the first installation
	load := c.load()
	c.block("Install", 2)
	c.block("Install", 3, "NODE=n1")
	c.expectPods("one node", "kube-system", kubeProxyPods, "cp kube-proxy:v1.36.3\nn2 kube-proxy:v1.36.3")
	c.expectPods("one node", "sluice-system", sluicePods, "n1 sluice:v1")
	pod := strings.TrimSpace(c.kubectl("-n", "sluice-system", "get", "pods", "-l", sluicePods, "--field-selector=spec.nodeName=n1", "-o", "name"))
	logged := make(chan string, 1)
	go func() { // until the Pod ends
		out, err := c.Kubectl(c.Context(), "", "-n", "sluice-system", "logs", "--follow", pod)
		logged <- fmt.Sprint(out, err)
	}()
	c.block("Roll back to kube-proxy", 2, "NODE=n1")
	load.end("one node and back", false)
	if log := <-logged; !strings.Contains(log, "sluice stopped; kube-proxy forwards") {
		c.Errorf("one node and back: sluice did not hand over:\n%s", log)
	}
	c.expectTables("one node and back", "kube-proxy", "sluice")
	c.must(c.Rollback(c.Context()))
	c.must(c.Uninstall(c.Context()))
}

// expectTables checks the nftables tables of all nodes.
func (c *cluster) expectTables(when, with, without string) {
	c.Helper()
	for _, n := range c.Nodes {
		out, err := n.Exec(c.Context(), "nft", "list", "tables")
		if c.must(err); !strings.Contains(out, "table ip "+with+"\n") || strings.Contains(out, "table ip "+without+"\n") {
			c.Errorf("%s: tables of node %s\n%s", when, n.Name, out)
		}
	}
}

// logs returns the logs of sluice's Pods, and checks that there are no warnings but those with an allowed text.
func (c *cluster) logs(allowed ...string) string {
	c.Helper()
	allowed = append(allowed, "oomScoreAdj") // machines without CAP_SYS_RESOURCE cannot lower it
	logs := c.kubectl("-n", "sluice-system", "logs", "-l", sluicePods, "--tail=-1")
	for line := range strings.Lines(logs) {
		isAllowed := slices.ContainsFunc(allowed, func(text string) bool { return strings.Contains(line, text) })
		if (strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`)) && !isAllowed {
			c.Errorf("sluice logs %s", line)
		}
	}
	return logs
}

// noWarnings: Pods have no Events of type Warning, except of probes in the first minute of their program: on a busy machine, a
// start may take longer than until the first probes.
func (c *cluster) noWarnings() {
	c.Helper()
	const (
		started = `jsonpath={.status.containerStatuses[0].state.running.startedAt}`
		events  = `jsonpath={range .items[*]}{.lastTimestamp} {.message}{"\n"}{end}`
	)
	for _, pod := range strings.Fields(c.kubectl("-n", "sluice-system", "get", "pods", "-l", sluicePods, "-o", "name")) {
		began, err := time.Parse(time.RFC3339, c.kubectl("-n", "sluice-system", "get", pod, "-o", started))
		c.must(err)
		selector := "--field-selector=type=Warning,involvedObject.name=" + strings.TrimPrefix(pod, "pod/")
		for line := range strings.Lines(c.kubectl("-n", "sluice-system", "get", "events", selector, "-o", events)) {
			stamp, message, _ := strings.Cut(strings.TrimSpace(line), " ")
			at, err := time.Parse(time.RFC3339, stamp)
			probe := strings.HasPrefix(message, "Startup probe failed") || message == "Readiness probe failed: HTTP probe failed with statuscode: 503"
			if err != nil || !probe || at.Sub(began) > time.Minute {
				c.Errorf("%s, which began %s: %s", pod, began.Format(time.RFC3339), line)
			}
		}
	}
}

// expectHealthCheck waits until kube-proxy answers load balancers, whose port sluice had.
func (c *cluster) expectHealthCheck(n *realcluster.Node) {
	c.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return c.Outside.Dial(ctx, network, netip.MustParseAddrPort(addr))
	}}}
	testenv.Succeeds(c, "health check of node "+n.Name, func() error {
		resp, err := client.Get(fmt.Sprintf("http://%s:%d/", n.Addrs[0], healthPort))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(text), `"name": "local"`) {
			return fmt.Errorf("answers %s", text)
		}
		return err
	})
}

// preflight runs preflight.sh where nothing is in the way, with a label, and with a kube-proxy whose image lacks /etc/protocols.
func (c *cluster) preflight() {
	c.Helper()
	run := func() (string, error) {
		cmd := exec.CommandContext(c.Context(), "sh", "preflight.sh")
		cmd.Dir = filepath.Join(c.Work, "deploy")
		cmd.Env = append(os.Environ(), "PATH="+c.Tools+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig())
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		p, err := c.Outside.Start(cmd)
		if err == nil {
			err = p.Wait()
		}
		return out.String(), err
	}
	if out, err := run(); err != nil || out != "" {
		c.Errorf("preflight.sh: %v\n%s", err, out)
	}
	c.kubectl("label", "node", "n2", "sluice.dev/proxy=sluice")
	if out, err := run(); err == nil || !strings.Contains(out, "\nnode/n2\n") || strings.Contains(out, "node/n1") {
		c.Errorf("preflight.sh, with a label of an earlier installation: %v\n%s", err, out)
	}
	c.kubectl("label", "node", "n2", "sluice.dev/proxy-")
	c.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type=strategic", "-p", `{"spec": {"template": {"spec": {
		"containers": [{"name": "kube-proxy", "volumeMounts": [{"name": "none", "mountPath": "/etc/protocols"}]}],
		"volumes": [{"name": "none", "hostPath": {"path": "/dev/null"}}]}}}}`)
	c.kubectl("-n", "kube-system", "rollout", "status", "daemonset", "kube-proxy", "--timeout=120s")
	if out, err := run(); err != nil || !strings.Contains(out, "has no /etc/protocols") {
		c.Errorf("preflight.sh, without /etc/protocols: %v\n%s", err, out)
	}
}
