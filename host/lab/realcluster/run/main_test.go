package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// asCommand makes this program the command, in its environment.
const asCommand = "SLUICE_TEST_COMMAND"

func TestMain(m *testing.M) {
	realcluster.Enter()
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command runs this command and returns its output.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), exe, args...) // also in Cleanup
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, append(os.Environ(), asCommand+"=1")
	err = cmd.Run()
	return out.String(), err
}

func TestRefusesWithAReason(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for want, args := range map[string][]string{
		"usage: cluster up|exec|down":                          {},
		`no command "upp"`:                                     {"upp"},
		`name "a/b" of a cluster: it must be of lower-case`:    {"up", "-name", "a/b", "-proxy", "none"},
		`name "../x" of a cluster`:                             {"down", "-name", "../x"},
		`mode "iptables": it must be nftables or ipvs`:         {"up", "-mode", "iptables"},
		"sluice's image is needed, and its tag":                {"up"},
		"no cluster test-none is running":                      {"exec", "-name", "test-none", "n1", "true"},
		"9 workers: a cluster has 1 to 8":                      {"up", "-name", "test-none", "-workers", "9", "-proxy", "none"},
		`family "ipv5": it must be ipv4, ipv6 or dual`:         {"up", "-name", "test-none", "-family", "ipv5", "-proxy", "none"},
		`proxy "envoy": it must be kube-proxy, sluice or none`: {"up", "-name", "test-none", "-proxy", "envoy"},
	} {
		out, err := command(t, args...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v\n%s\nwant %q", args, err, out, want)
		}
	}
	if out, err := command(t, "down", "-name", "test-none"); err != nil || !strings.Contains(out, "there is no cluster test-none") {
		t.Errorf("down: %v\n%s", err, out)
	}
}

// TestClusterGoesOnWithoutTheCommand: kubectl works from the machine, `up` again changes nothing, and everything ends with the
// keeper, even if it is killed.
func TestClusterGoesOnWithoutTheCommand(t *testing.T) {
	if os.Getenv("SLUICE_TEST_REALCLUSTER") == "" {
		t.Skip("starts a cluster: make test-realcluster")
	}
	_, err := programs.Find()
	testenv.Require(t, err)
	const name = "test-keep"
	t.Cleanup(func() {
		if out, err := command(t, "down", "-name", name); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	up := []string{"up", "-name", name, "-workers", "1", "-proxy", "kube-proxy"}
	for range 2 {
		if out, err := command(t, up...); err != nil || !strings.Contains(out, "is up") {
			t.Fatalf("up: %v\n%s", err, out)
		}
	}
	if out, err := command(t, append(up, "-family", "dual")...); err == nil || !strings.Contains(out, "runs with other settings") {
		t.Errorf("up with another family: %v\n%s", err, out)
	}
	s, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := binaries.Find(binaries.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := exec.Command(filepath.Join(tools, binaries.Kubectl), "--kubeconfig="+s.kubeconfig(), "get", "nodes", "-o", "name")
	if out, err := kubectl.CombinedOutput(); err != nil || string(out) != "node/cp\nnode/n1\n" {
		t.Errorf("kubectl get nodes: %v\n%s", err, out)
	}
	if out, err := command(t, "exec", "-name", name, "n1", "hostname"); err != nil || out != "n1\n" {
		t.Errorf("exec n1 hostname: %v\n%s", err, out)
	}
	running := func() bool { return s.keeper() != 0 }
	for _, node := range []string{"cp", "n1"} {
		pid, err := os.ReadFile(filepath.Join(s.cluster(), "nodes", node, "init.pid"))
		if err != nil {
			t.Fatal(err)
		}
		others := running
		running = func() bool { return others() || exists("/proc/"+string(pid)) }
	}
	if err := syscall.Kill(s.keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the cluster ends with its keeper", func() bool { return !running() })
	if out, err := command(t, "down", "-name", name); err != nil || !strings.Contains(out, "is stopped and removed") {
		t.Errorf("down: %v\n%s", err, out)
	}
	if s.exists() {
		t.Errorf("%s is still there", s.dir)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
