package kubeproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MetricsAddress is kube-proxy's default metricsBindAddress.
const MetricsAddress = "127.0.0.1:10249"

// answerTimeout bounds requests to kube-proxy over the loopback interface.
const answerTimeout = 500 * time.Millisecond

// Running returns evidence that kube-proxy is running in the network namespace of the calling thread, or "" if there is none:
// a process of its name under proc, or an answer on address. In a container without the host's processes, only the answer
// is evidence.
func Running(ctx context.Context, proc, address string) (string, error) {
	pid, err := findProcess(proc)
	if err != nil {
		return "", fmt.Errorf("find kube-proxy: %w", err)
	}
	if pid != 0 {
		return fmt.Sprintf("process %d", pid), nil
	}
	if answersAt(ctx, address) {
		return "it answers on " + address, nil
	}
	return "", nil
}

// RequireStopped returns an error with the given reason while kube-proxy is running on this node.
func RequireStopped(ctx context.Context, reason string) error {
	by, err := Running(ctx, "/proc", MetricsAddress)
	if err != nil {
		return err
	}
	if by != "" {
		return fmt.Errorf("kube-proxy is running on this node (%s): %s; stop it first", by, reason)
	}
	return nil
}

// findProcess returns the ID of a process called kube-proxy in this network namespace, or 0. Processes that may not be
// inspected are skipped.
func findProcess(proc string) (pid int, err error) {
	own, err := os.Readlink(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return 0, err
	}
	list, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		n, err := strconv.Atoi(d.Name())
		if err != nil || n == os.Getpid() {
			continue
		}
		dir := filepath.Join(proc, d.Name())
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) == 0 { // exited, a zombie, or a kernel thread
			continue
		}
		arg0, _, _ := bytes.Cut(line, []byte{0})
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		if filepath.Base(string(arg0)) != kubeProxyName && string(bytes.TrimSpace(comm)) != kubeProxyName {
			continue
		}
		if net, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && net == own {
			return n, nil
		}
	}
	return 0, nil
}

// answersAt reports whether kube-proxy is serving on its metrics address. sluice serves the same paths; its configuration
// distinguishes it.
func answersAt(ctx context.Context, address string) bool {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) string {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return ""
		}
		resp, err := client.Do(req)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil || resp.StatusCode != http.StatusOK {
			return ""
		}
		return strings.TrimSpace(string(body))
	}
	if !slices.Contains([]string{"nftables", "iptables", "ipvs", "userspace"}, get("/proxyMode")) {
		return false
	}
	return !strings.Contains(get("/configz"), "sluice.dev/")
}
