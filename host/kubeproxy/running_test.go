package kubeproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// startProcess starts a process with a name in the namespace.
func (n node) startProcess(name string) *exec.Cmd {
	n.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		n.Fatal(err)
	}
	cmd := &exec.Cmd{Path: sleep, Args: []string{name, "60"}}
	if err := n.Do(cmd.Start); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// Start returns when exec(2) has closed its files, which is before it has put the arguments in place.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); err == nil && strings.HasPrefix(string(line), name+"\x00") {
			return cmd
		}
		if time.Now().After(end) {
			n.Fatalf("process %s does not appear", name)
		}
	}
}

func (n node) running(address string) string {
	n.Helper()
	var by string
	if err := n.Do(func() (err error) {
		by, err = Running(context.Background(), "/proc", address)
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return by
}

func TestRunningFindsTheProcess(t *testing.T) {
	n, other := newNode(t), newNode(t)
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Fatalf("nothing is running, got %q", by)
	}
	other.startProcess("kube-proxy")
	n.startProcess("not-kube-proxy")
	n.startProcess("kube-proxy-exporter")
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Errorf("only one in another namespace is running, got %q", by)
	}
	cmd := n.startProcess("/usr/local/bin/kube-proxy")
	if by, want := n.running("127.0.0.1:1"), fmt.Sprintf("process %d", cmd.Process.Pid); by != want {
		t.Errorf("%q, want %q", by, want)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Errorf("it has exited, got %q", by)
	}
}

func TestRunningRecognizesTheMetricsServer(t *testing.T) {
	lo, err := netlink.LinkByName("lo") // of the tests' namespace
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
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
	if _, err := Running(t.Context(), filepath.Join(t.TempDir(), "none"), "127.0.0.1:1"); err == nil {
		t.Error("no /proc, and no error")
	}
}
