package deploy

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// cluster is a control plane in a node's network namespace, with two Nodes. n1 is that node, on which the containers of
// sluice's Pods run. Pods on n2 and all other Pods are only marked ready.
type cluster struct {
	*node
	*testcluster.Cluster
	tools string // folder of kubectl
	work  string // copy of deploy/, for the commands of the README
	runs  map[types.UID]*process
	last  *process // of a sluice
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	tools, err := binaries.Find(binaries.Cluster()...)
	testenv.Require(t, err)
	c := &cluster{node: newNode(t, ""), tools: tools, work: t.TempDir(), runs: map[types.UID]*process{}}
	c.Cluster, err = testcluster.Start(t.Context(), testcluster.Options{Host: c.lab.Node, Controllers: []string{"daemonset-controller", "job-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Cluster.Close)
	if err := os.CopyFS(filepath.Join(c.work, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"n1", "n2"} {
		if err := c.AddNode(t.Context(), testcluster.Node{
			Name: name, Zone: "a", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)})},
			Pods: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	c.volumes()
	return c
}

// volumes creates the service account volume that the kubelet mounts. The configuration comes from the ConfigMap.
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

// sh runs shell commands in the root of the checkout, and simulates the kubelets meanwhile.
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

// until simulates the kubelets until the condition is true.
func (c *cluster) until(what string, condition func() bool) {
	c.Helper()
	for end := time.Now().Add(timeout); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("%s: not after a minute\nsluice:\n%s", what, c.last)
		}
		c.kubelets()
	}
}

// pods returns the nodes on which a DaemonSet has Pods, sorted, with the tags of their images.
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
