package kubeproxy

import (
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

// MetricsPort is the port of kube-proxy's default metricsBindAddress, 127.0.0.1:10249.
const MetricsPort = 10249

// answerTimeout bounds requests to kube-proxy over the loopback interface.
const answerTimeout = 500 * time.Millisecond

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// loopbackClient returns a client that follows no redirect and keeps no connection.
func loopbackClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// RequireStopped returns an error with the given reason while kube-proxy is running on this node.
func RequireStopped(ctx context.Context, reason string) error {
	by, err := Running(ctx, "/proc", MetricsPort)
	if err != nil {
		return err
	}
	if by != "" {
		return fmt.Errorf("kube-proxy is running on this node (%s): %s; stop it first", by, reason)
	}
	return nil
}

// Running returns evidence that kube-proxy is running in the network namespace of the calling thread, or "" if there is
// none. A process without CAP_NET_ADMIN in the namespace cannot produce any:
//
//   - a process whose executable is called kube-proxy and that has this capability. Name and arguments of a process do not
//     count, because every user can choose them, also for a program that runs as root.
//   - an answer on port, from a socket of root's or of this process's user, while the kernel has objects of kube-proxy's. In
//     a container without the host's processes, this is the only evidence; so it is if kube-proxy is part of another
//     program, such as k3s.
func Running(ctx context.Context, proc string, port uint16) (string, error) {
	pid, err := findProcess(proc)
	if err != nil {
		return "", fmt.Errorf("find kube-proxy: %w", err)
	}
	if pid != 0 {
		return fmt.Sprintf("process %d", pid), nil
	}
	trusted, err := hasTrustedListener(proc, port)
	if err != nil {
		return "", fmt.Errorf("find kube-proxy: %w", err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if !trusted || !answersAt(ctx, address) {
		return "", nil
	}
	found, err := Find(ctx, PortRange{}) // whoever has NodePorts has ClusterIPs, too
	if len(found) == 0 && err == nil {
		return "", nil
	}
	return "it answers on " + address, nil
}

// findProcess returns the ID of a kube-proxy in this network namespace, or 0. Processes that may not be inspected are
// skipped.
func findProcess(proc string) (pid int, err error) {
	own, err := os.Readlink(filepath.Join(proc, "thread-self/ns/net"))
	if err != nil {
		return 0, err
	}
	user, err := os.Readlink(filepath.Join(proc, "thread-self/ns/user"))
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
		linksTo := func(name, want string) bool {
			got, err := os.Readlink(filepath.Join(dir, name))
			return err == nil && got == want
		}
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != kubeProxyName {
			continue
		}
		// The capability counts in the user namespace that the process is in.
		if linksTo("ns/net", own) && linksTo("ns/user", user) && isNetAdmin(dir) {
			return n, nil
		}
	}
	return 0, nil
}

// isNetAdmin reports whether a process, by its folder in /proc, has CAP_NET_ADMIN.
func isNetAdmin(dir string) bool {
	const capNetAdmin = 12
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && caps&(1<<capNetAdmin) != 0
		}
	}
	return false
}

// answersAt reports whether kube-proxy is serving on its metrics address. sluice serves the same paths; its configuration
// distinguishes it.
func answersAt(ctx context.Context, address string) bool {
	ctx, stop := context.WithTimeout(ctx, answerTimeout)
	defer stop()
	client := loopbackClient()
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
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
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
