package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestKubeconfigReadsRegularFilesOnly: client-go would wait forever for the writer of a FIFO, or read an endless file.
func TestKubeconfigReadsRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	text := func(user, cluster string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443"%s}}], users: [{name: u, user: {%s}}]}`, cluster, user)
	}
	for name, content := range map[string]string{
		"good": text("tokenFile: token", ""), "inline": text("token: abc", ""), "token": "abc",
		"fifo token": text("tokenFile: fifo", ""), "device": text("client-certificate: /dev/zero, client-key: token", ""),
		"fifo ca": text("token: abc", ", certificate-authority: fifo"), "no token": text("tokenFile: none", ""),
	} {
		if err := os.WriteFile(in(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"good": "", "inline": "", "fifo": "not a regular file", "none": "no such file", "fifo token": "fifo: not a regular file",
		"device": "/dev/zero: not a regular file", "fifo ca": "fifo: not a regular file", "no token": "none: no such file", ".": "is a directory",
	} {
		config, err := Connection{Kubeconfig: in(name), Server: "https://192.0.2.2"}.Config()
		switch {
		case want == "" && (err != nil || config.Host != "https://192.0.2.2" || config.BearerToken != "abc"):
			t.Errorf("%s: %+v, %v", name, config, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "kubeconfig "+in(name)+": ") || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", name, err)
		}
	}
}
