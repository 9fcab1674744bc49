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

// MetricsAddress is where kube-proxy answers by default.
const MetricsAddress = "127.0.0.1:10249"

// askTimeout is for an answer over the loopback link.
const askTimeout = 500 * time.Millisecond

// Running tells by what kube-proxy shows that it runs in the network namespace of the calling thread: a process of its
// name, or an answer at address. It gives "" when nothing shows it; in a container that does not see the host's
// processes, only the answer can.
func Running(ctx context.Context, proc, address string) (string, error) {
	pid, err := process(proc)
	if err != nil {
		return "", fmt.Errorf("look for kube-proxy: %w", err)
	}
	if pid != 0 {
		return fmt.Sprintf("process %d", pid), nil
	}
	if answers(ctx, address) {
		return "it answers on " + address, nil
	}
	return "", nil
}

// RequireStopped returns an error while kube-proxy runs on this node: both would translate the same packets, and it would
// write back what is removed. reason is part of the error.
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

// process finds a process called kube-proxy in this network namespace. Those that may not be looked at are not ours
// to judge.
func process(proc string) (pid int, err error) {
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
		if err != nil || len(line) == 0 { // gone, dead, or a thread of the kernel's
			continue
		}
		arg0, _, _ := bytes.Cut(line, []byte{0})
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		if filepath.Base(string(arg0)) != ownTable && string(bytes.TrimSpace(comm)) != ownTable {
			continue
		}
		if net, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && net == own {
			return n, nil
		}
	}
	return 0, nil
}

// answers tells whether what answers on kube-proxy's metrics address is kube-proxy. sluice answers the same questions
// there; its configuration tells.
func answers(ctx context.Context, address string) bool {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(path string) string {
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
	if !slices.Contains([]string{"nftables", "iptables", "ipvs", "userspace"}, ask("/proxyMode")) {
		return false
	}
	return !strings.Contains(ask("/configz"), "sluice.dev/")
}
