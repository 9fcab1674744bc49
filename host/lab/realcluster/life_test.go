package realcluster

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// machine describes what a cluster must not change: links, addresses, routes and rules of the machine's network, its mounts, its
// sysctls that kubelets set, and its cgroups of clusters with a name.
func machine(t *testing.T, cluster string) string {
	t.Helper()
	var b bytes.Buffer
	parent := strconv.Itoa(os.Getppid()) // testnet's, in the machine's namespaces
	cmd := exec.Command("nsenter", "--target", parent, "--net", "--mount", "--", "sh", "-c",
		"ip -o link | sed 's/^[0-9]*: //; s/ .*//'; ip -o addr show scope global | cut -d' ' -f2-7; ip route; ip -6 route; nft list tables; grep -v ^nsfs /proc/self/mounts | sort")
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &b)
	}
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(name + " = " + string(value))
	}
	b.WriteString(strings.Join(leftCgroups(t, cluster), "\n"))
	return b.String()
}

func leftCgroups(t *testing.T, cluster string) (left []string) {
	t.Helper()
	groups, err := nodeCgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		made, err := filepath.Glob(filepath.Join(g.Path, cgroupName(cluster, "*")))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, made...)
	}
	return left
}

// processes returns the command lines of processes that mention a folder, or are in a cgroup of a cluster.
func processes(t *testing.T, cluster, dir string) (out []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range all {
		line, _ := os.ReadFile(filepath.Join(at, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(at, "cgroup"))
		if bytes.Contains(line, []byte(dir)) || bytes.Contains(groups, []byte(cgroupName(cluster, ""))) {
			out = append(out, filepath.Base(at)+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return out
}

// TestTwoClustersAtOnce: they have the same addresses and do not disturb each other; nothing is left of one that is closed, and
// the machine is as before.
func TestTwoClustersAtOnce(t *testing.T) {
	before := ""
	if testnet.Inside() {
		before = machine(t, "test-a")
	}
	both := newClusters(t, Config{Name: "test-a", Workers: 1}, Config{Name: "test-a-b", Workers: 1})
	a, b := both[0], both[1]
	a.answers(t)
	b.answers(t)
	if len(processes(t, "test-a", a.config.Dir)) < 10 || len(leftCgroups(t, "test-a")) == 0 {
		t.Fatal("no processes or cgroups of a running cluster are found: this test finds none that are left either")
	}
	a.Close()
	b.answers(t)
	if left := processes(t, "test-a", a.config.Dir); len(left) > 0 {
		t.Errorf("processes after Close:\n%s", strings.Join(left, "\n"))
	}
	if after := machine(t, "test-a"); after != before {
		t.Errorf("the machine before:\n%s\nand after:\n%s", before, after)
	}
	if _, err := os.Stat(a.config.Dir); !os.IsNotExist(err) {
		t.Errorf("the cluster's folder after Close: %v", err)
	}
}

func TestNodesArePoweredOffAndOn(t *testing.T) {
	c := newClusters(t, Config{Name: "test-power", Workers: 2})[0]
	n := c.Node("n1")
	if _, err := n.Exec(t.Context(), "touch", "/var/tmp/disk", "/run/memory"); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"kubelet", "containerd"} {
		before, err := n.PID(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Kill(program, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		again := func() error { // a busy machine ends the first one later
			after, err := n.PID(program)
			if err == nil && after == before {
				err = fmt.Errorf("its process ID is still %d", after)
			}
			return err
		}
		if err := poll(t.Context(), program+" again", again); err != nil {
			t.Fatal(err)
		}
	}
	c.answers(t)

	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ask(t.Context(), n.Addrs[0]); err == nil {
		t.Error("a node that is off answers")
	}
	if _, err := n.Exec(t.Context(), "true"); err == nil {
		t.Error("a command runs on a node that is off")
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName("test-power", "n1")); len(left) > 0 {
		t.Errorf("cgroups of a node that is off: %v", left)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.answers(t)
	out, err := n.Exec(t.Context(), "sh", "-c", "cd /; ls var/tmp/disk run/memory 2>/dev/null; true")
	if err != nil || strings.TrimSpace(out) != "var/tmp/disk" {
		t.Errorf("after power-off there are %q (%v), want the file on the disk only", out, err)
	}
	if err := n.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.answers(t)
	if err := c.Node(ControlPlane).Reset(t.Context()); err == nil {
		t.Error("the control plane's node was reset, with the control plane's network")
	}
}
