package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// node is a network namespace with Pods, in which the containers of the manifests run.
type node struct {
	*testing.T
	lab       *testnet.Lab
	client    *testnet.Host
	img       *image
	config    string // directory with the mounted ConfigMap
	state     string // host directory mounted at /run/sluice
	manifests string // directory with the cluster's objects
}

// timeout is the time limit of operations that are fast on an idle machine.
const timeout = 3 * time.Minute

var vip = netip.MustParseAddrPort("10.96.0.10:80")

func newNode(t *testing.T, config string) *node {
	t.Helper()
	n := &node{T: t, img: sharedImage(t), config: t.TempDir(), state: t.TempDir(), manifests: t.TempDir()}
	var err error
	if n.lab, err = testnet.New(netip.MustParseAddr("192.168.0.1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.lab.Close)
	if n.client, err = n.lab.AddHost("client", netip.MustParseAddr("10.244.0.9")); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		p, err := n.lab.AddHost(fmt.Sprint("p", i), netip.MustParseAddr(fmt.Sprint("10.244.0.", i)))
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.Serve("tcp", netip.AddrPortFrom(p.Addrs[0], 8080), p.Name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	n.write(n.config, "sluice.yaml", config)
	n.write(n.manifests, "cluster.yaml", `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
spec: {podCIDR: 10.244.0.0/24, podCIDRs: [10.244.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {traffic: in-zone}}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, nodeName: n1, zone: a}
- {addresses: [10.244.0.2], conditions: {ready: true}, nodeName: n1, zone: a}
`)
	return n
}

func (n *node) write(dir, name, text string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// daemonSet returns the DaemonSet of the manifests.
func daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	ds := new(appsv1.DaemonSet)
	if err := yaml.UnmarshalStrict([]byte(read(t, "kustomize/base/daemonset.yaml")), ds); err != nil {
		t.Fatal(err)
	}
	return ds
}

func cleanupJob(t *testing.T) *batchv1.Job {
	t.Helper()
	job := new(batchv1.Job)
	if err := yaml.UnmarshalStrict([]byte(read(t, "cleanup.yaml")), job); err != nil {
		t.Fatal(err)
	}
	return job
}

// container returns a Pod's container as a runtime would create it on this node.
func (n *node) container(c corev1.Container, more ...string) container {
	n.Helper()
	out := container{
		Root: n.img.root, Args: append(n.img.config.Config.Entrypoint[:1:1], c.Args...),
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	for i, a := range out.Args {
		out.Args[i] = strings.ReplaceAll(a, "$(NODE_NAME)", "n1")
	}
	out.Args = append(out.Args, more...)
	if s := c.SecurityContext; s != nil {
		out.ReadOnly = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
		out.Privileged = s.Privileged != nil && *s.Privileged
		out.Seccomp = !out.Privileged // the Pod's profile; a privileged container has none
		out.NoNewPrivileges = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
		if caps := s.Capabilities; caps != nil {
			if add := fmt.Sprint(caps.Add); fmt.Sprint(caps.Drop) != "[ALL]" || add != "[NET_ADMIN]" && add != "[]" {
				n.Fatalf("container %s: capabilities %+v", c.Name, caps)
			}
			if len(caps.Add) > 0 {
				out.Capabilities = []int{unix.CAP_NET_ADMIN}
			}
		}
	}
	for _, m := range c.VolumeMounts {
		from := map[string]string{"config": n.config, "state": n.state}[m.Name]
		if from == "" {
			n.Fatalf("container %s: a volume %s", c.Name, m.Name)
		}
		out.Mounts = append(out.Mounts, mount{From: from, To: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return out
}

// withManifests makes a directory of manifests the source of the cluster state instead of the API server.
func (n *node) withManifests(c container) container {
	c.Mounts = append(c.Mounts, mount{From: n.manifests, To: "/manifests", ReadOnly: true})
	c.Args = append(c.Args, "--source=/manifests")
	return c
}

// process is a running container with its output.
type process struct {
	*testnet.Program
	*testnet.Log
}

func (n *node) start(c container) *process {
	n.Helper()
	cmd, err := c.command()
	if err != nil {
		n.Fatal(err)
	}
	return n.launch(cmd)
}

// launch starts a program on the node.
func (n *node) launch(cmd *exec.Cmd) *process {
	n.Helper()
	log := &testnet.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := n.lab.Node.Start(cmd)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(p.Kill)
	return &process{p, log}
}

// run runs a container until it exits and returns its output.
func (n *node) run(c container) (string, error) {
	n.Helper()
	p := n.start(c)
	err := p.Wait()
	return p.String(), err
}

// waitForLog waits for a text in a container's log.
func (n *node) waitForLog(p *process, text string) {
	n.Helper()
	testenv.Eventually(n, "logs "+text, func() bool { return strings.Contains(p.String(), text) }, p.String)
}

// waitForPlugins waits until all plugins of overlays/policies are loaded, without compiling them: locality in a chain and in a
// shadow, lifecycle.
func (n *node) waitForPlugins(p *process) {
	n.Helper()
	for _, plugin := range []string{"lifecycle", "locality", "locality/shadow"} {
		loaded := regexp.MustCompile(fmt.Sprintf(`"msg":"loaded plugin","plugin":"%s",.*"settings":1,.*"code":"precompiled","duration":`, plugin))
		testenv.Eventually(n, "all plugins are loaded: "+loaded.String(), func() bool { return loaded.MatchString(p.String()) }, p.String)
	}
}

// answers checks that both Pods respond through the Service.
func (n *node) answers(when string) {
	n.Helper()
	seen := map[string]int{}
	for range 60 {
		a, err := n.client.Ask("tcp", vip, timeout)
		if err != nil {
			n.Fatalf("%s: %v", when, err)
		}
		seen[a.Server]++
	}
	if seen["p1"] == 0 || seen["p2"] == 0 || len(seen) != 2 {
		n.Fatalf("%s: responses of %v", when, seen)
	}
}

// get sends an HTTP probe as the kubelet does.
func (n *node) get(c corev1.Container, p *corev1.Probe) (int, error) {
	n.Helper()
	port := p.HTTPGet.Port.IntValue()
	for _, named := range c.Ports {
		if named.Name == p.HTTPGet.Port.StrVal {
			port = int(named.ContainerPort)
		}
	}
	client := http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return nil, err
			}
			return n.lab.Node.Dial(ctx, network, to)
		},
	}}
	resp, err := client.Get(fmt.Sprintf("http://%s:%d%s", cmp.Or(p.HTTPGet.Host, n.lab.Node.Addrs[0].String()), port, p.HTTPGet.Path))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// complaints returns the lines of a JSON log above level INFO, except about oomScoreAdj, which root of a user namespace cannot
// lower.
func complaints(t *testing.T, log string) (out []string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var entry struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("not JSON: %q", line)
		}
		if (entry.Level == "WARN" || entry.Level == "ERROR") && entry.Msg != "setting oomScoreAdj failed" {
			out = append(out, line)
		}
	}
	return out
}

// sysctl reads a sysctl of the node's network namespace.
func (n *node) sysctl(name string) (value string) {
	n.Helper()
	err := n.lab.Node.Do(func() error {
		text, err := os.ReadFile("/proc/sys/" + name) // of the thread's namespace
		value = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return value
}

func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// withoutTableSize disables setting the conntrack table size, which is read-only in other network namespaces than the initial
// one.
func withoutTableSize(config string) string {
	return config + "\nconntrack: {maxPerCore: 0, min: 0}\n"
}

// otherUsers skips a test in a user namespace with one user only.
func otherUsers(t *testing.T) {
	t.Helper()
	if f := strings.Fields(read(t, "/proc/self/uid_map")); len(f) == 3 && f[2] == "1" {
		t.Skip("there is no other user in this user namespace; run it as root")
	}
}
