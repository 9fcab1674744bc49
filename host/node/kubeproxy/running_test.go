package kubeproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// waitEnv makes this program wait until its input ends.
const waitEnv = "SLUICE_TEST_WAIT"

func TestMain(m *testing.M) {
	if os.Getenv(waitEnv) != "" {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	testnet.Main(m)
}

// copyProgram copies this program to a file of another name.
func (n node) copyProgram(name string) string {
	n.Helper()
	self, err := os.Executable()
	if err != nil {
		n.Fatal(err)
	}
	dir := n.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil { // for other users
		n.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if os.Link(self, path) == nil {
		return path
	}
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, text, 0o755)
	}
	if err != nil {
		n.Fatal(err)
	}
	return path
}

// startProcess starts a program that waits in the namespace, with a name in its arguments.
func (n node) startProcess(program, arg0 string, attr *syscall.SysProcAttr) *testnet.Program {
	n.Helper()
	cmd := &exec.Cmd{Path: program, Args: []string{arg0}, Env: append(os.Environ(), waitEnv+"=1"), SysProcAttr: attr}
	if _, err := cmd.StdinPipe(); err != nil {
		n.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.Fatal(err)
	}
	p, err := n.Start(cmd)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(p.Kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		n.Fatalf("%s: %q, %v", program, line, err)
	}
	return p
}

func (n node) running(port uint16) string {
	n.Helper()
	var by string
	if err := n.Do(func() (err error) {
		by, err = Running(context.Background(), "/proc", port)
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return by
}

const closedPort = 1

func TestRunningFindsTheProcess(t *testing.T) {
	n, other := newNode(t), newNode(t)
	if by := n.running(closedPort); by != "" {
		t.Fatalf("nothing is running, got %q", by)
	}
	kubeProxy := n.copyProgram("kube-proxy")
	other.startProcess(kubeProxy, "kube-proxy", nil)
	n.startProcess(n.copyProgram("not-kube-proxy"), "not-kube-proxy", nil)
	n.startProcess(n.copyProgram("kube-proxy-exporter"), "kube-proxy-exporter", nil)
	if by := n.running(closedPort); by != "" {
		t.Errorf("only one in another namespace is running, got %q", by)
	}
	p := n.startProcess(kubeProxy, "/usr/local/bin/kube-proxy", nil)
	if by, want := n.running(closedPort), fmt.Sprintf("process %d", p.PID()); by != want {
		t.Errorf("%q, want %q", by, want)
	}
	p.Kill()
	if by := n.running(closedPort); by != "" {
		t.Errorf("it has exited, got %q", by)
	}
}

// TestProcessWithoutPrivilegesIsNoEvidence starts what every user can: a program of that name without capabilities, and a
// privileged program, such as one that is setuid root, under that name.
func TestProcessWithoutPrivilegesIsNoEvidence(t *testing.T) {
	n := newNode(t)
	n.startProcess(n.copyProgram("passwd"), "kube-proxy", nil)
	link := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.Symlink(n.copyProgram("su"), link); err != nil {
		t.Fatal(err)
	}
	n.startProcess(link, "kube-proxy", nil)
	// In a user namespace of its own, it has all capabilities, but not in our network namespace.
	n.startProcess(n.copyProgram("kube-proxy"), "kube-proxy", &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	})
	if by := n.running(closedPort); by != "" {
		t.Errorf("%q is evidence", by)
	}
	if !isNetAdmin("/proc/self") {
		t.Error("this process has CAP_NET_ADMIN")
	}
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = attr
	if err := cmd.Run(); err != nil {
		t.Skipf("there is only one user in this user namespace: %v", err)
	}
	p := n.startProcess(n.copyProgram("kube-proxy"), "kube-proxy", attr)
	if isNetAdmin(fmt.Sprintf("/proc/%d", p.PID())) {
		t.Error("uid 65534 has CAP_NET_ADMIN")
	}
	if by := n.running(closedPort); by != "" {
		t.Errorf("%q is evidence", by)
	}
}

// TestAnswerCountsWithEvidenceOfTheKernel: a socket of root's answers, and the kernel has objects of kube-proxy's.
func TestAnswerCountsWithEvidenceOfTheKernel(t *testing.T) {
	newNode(t, "nft") // skips without it
	loopbackUp(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/proxyMode" {
			io.WriteString(w, "nftables")
		}
	}))
	s.Start()
	defer s.Close()
	port := uint16(s.Listener.Addr().(*net.TCPAddr).Port)
	running := func() string {
		by, err := Running(t.Context(), "/proc", port)
		if err != nil {
			t.Fatal(err)
		}
		return by
	}
	nft := func(verb string) {
		if out, err := exec.Command("nft", verb, "table", "ip", "kube-proxy").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	if by := running(); by != "" {
		t.Errorf("nothing in the kernel: %q is evidence", by)
	}
	nft("add")
	defer nft("delete")
	if by, want := running(), fmt.Sprintf("it answers on 127.0.0.1:%d", port); by != want {
		t.Errorf("%q, want %q", by, want)
	}
	s.Close()
	if by := running(); by != "" {
		t.Errorf("it has stopped: %q is evidence", by)
	}
}

// loopbackUp enables the loopback interface of the tests' namespace, which HTTP clients dial in.
func loopbackUp(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestListenersOfOthersDoNotCount(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(local, state string, uid int) string {
		return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000 %5d        0 54321 1 0000000000000000 100 0 0 10 0\n", local, state, uid)
	}
	for name, c := range map[string]struct {
		rows string
		want bool
	}{
		"none":                  {"", false},
		"root's":                {row("0100007F:2809", "0A", 0), true},
		"its own":               {row("0100007F:2809", "0A", 1000), true},
		"another user's":        {row("0100007F:2809", "0A", 1001), false},
		"on all addresses":      {row("00000000:2809", "0A", 0), true},
		"on all, IPv6":          {row("00000000000000000000000000000000:2809", "0A", 0), true},
		"IPv4-mapped":           {row("0000000000000000FFFF00000100007F:2809", "0A", 0), true},
		"on another address":    {row("0101A8C0:2809", "0A", 0), false},
		"on another port":       {row("0100007F:280A", "0A", 0), false},
		"connected":             {row("0100007F:2809", "01", 0), false},
		"another user's, first": {row("0100007F:2809", "0A", 1001) + row("00000000:2809", "0A", 0), true},
		"malformed":             {"x\n\n" + strings.Repeat("y ", 20) + "\n", false},
	} {
		if got, err := trustedListener(strings.NewReader(head+c.rows), MetricsPort, 1000); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestRunningRecognizesTheMetricsServer(t *testing.T) {
	loopbackUp(t)
	for name, c := range map[string]struct {
		mode, configz string
		slow          time.Duration
		want          bool
	}{
		"kube-proxy":                 {"iptables", `{"kubeproxy.config.k8s.io":{"BindAddress":"0.0.0.0"}}`, 0, true},
		"kube-proxy without configz": {"ipvs", "", 0, true},
		"sluice":                     {"nftables", `{"apiVersion":"sluice.dev/v1alpha1"}`, 0, false},
		"another program":            {"<html>", "", 0, false},
		"slow server":                {"iptables", "", 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(c.slow):
				case <-r.Context().Done():
				}
				switch {
				case r.URL.Path == "/proxyMode":
					io.WriteString(w, c.mode+"\n")
				case r.URL.Path == "/configz" && c.configz != "":
					io.WriteString(w, c.configz)
				default:
					http.NotFound(w, r)
				}
			}))
			s.Start()
			defer s.Close()
			if got := answersAt(t.Context(), s.Listener.Addr().String()); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
	if _, err := Running(t.Context(), filepath.Join(t.TempDir(), "none"), closedPort); err == nil {
		t.Error("no /proc, and no error")
	}
}
