package lab

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// ReplaceFile replaces a file atomically: readers see either the old or the new content.
func ReplaceFile(path string, text []byte) error {
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return fmt.Errorf("replace a file: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace a file: %w", err)
	}
	return nil
}

// ShortenConntrack shortens conntrack timeouts on the node, so that short connections do not accumulate. Some kernels do not
// allow this in a user namespace; everything works without.
func ShortenConntrack(node *testnet.Host) error {
	return node.Do(func() error {
		_ = os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", []byte("1"), 0)
		_ = os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", []byte("1"), 0)
		return nil
	})
}
