package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// runAgent runs an agent of node n1 with a Service and an endpoint that drains, on a kernel in memory. It returns its socket.
func runAgent(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	manifest := `{apiVersion: v1, kind: Node, metadata: {name: n1}}
---
{apiVersion: v1, kind: Service, metadata: {name: secretshop, namespace: hiddenspace}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: secretshop-1, namespace: hiddenspace, labels: {kubernetes.io/service-name: secretshop}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, nodeName: n1}
- {addresses: [10.244.0.2], conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Pod, name: secretshop-b, namespace: hiddenspace}}
`
	if err := os.Mkdir(filepath.Join(dir, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m", "a.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.HostnameOverride, cfg.HealthzBindAddress, cfg.MetricsBindAddress, cfg.PluginCacheDir = "n1", "", "", filepath.Join(dir, "cache")
	kernel, logs := fake.NewKernel(fake.Options{}), &agent.Logs{Verbosity: 1}
	a := agent.New(agent.Options{
		Config: cfg, Manifests: filepath.Join(dir, "m"), Socket: filepath.Join(dir, "sock"), Version: "v1.2.3",
		Modes: dataplane.Modes{{Name: config.ModeNFTables, Caps: fake.Everything, Open: func(*config.Config, *slog.Logger) (backend.Backend, error) { return fake.Open(kernel), nil }}},
		Log:   newLogger(io.Discard, cfg, logs), Logs: logs,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "sock")
	testenv.Eventually(t, "in sync", func() bool {
		s, err := stateclient.OnSocket(socket).Status(ctx)
		return err == nil && s.Synced != nil
	})
	return socket
}

// entriesOf returns the entries of a bundle.
func entriesOf(t *testing.T, f bundleFlags) map[string]string {
	t.Helper()
	var out bytes.Buffer
	f.file = "-"
	if err := f.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(&out)
	if err != nil {
		t.Fatal(err)
	}
	all, entries := tar.NewReader(zip), map[string]string{}
	for {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		text, rerr := io.ReadAll(all)
		if err := errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		entries[strings.TrimPrefix(h.Name, "sluice-bundle/")] = string(text)
	}
}

func TestBundleOfARunningSluice(t *testing.T) {
	socket := runAgent(t)
	parts := entriesOf(t, bundleFlags{socket: socket})
	for name, want := range map[string]string{
		"status.json": `"version": "v1.2.3"`, "drains.json": `"pod": "secretshop-b"`, "plan.txt": "hiddenspace/secretshop", "config.json": `"syncPeriod":`,
		"metrics.txt": "\nsluice_services 1\n", "log.txt": `msg="synced all services"`, "version.txt": "sluice", "check.txt": "capabilities",
	} {
		if !strings.Contains(parts[name], want) {
			t.Errorf("%s: no %q in\n%s%s", name, want, parts[name], parts[name+".error"])
		}
	}
	hidden := entriesOf(t, bundleFlags{socket: socket, anonymize: true})
	for name, text := range hidden {
		if strings.Contains(text, "secretshop") || strings.Contains(text, "hiddenspace") {
			t.Errorf("%s is not anonymous:\n%s", name, text)
		}
	}
	if !strings.Contains(hidden["status.json"], `"node": "n1"`) || !strings.Contains(hidden["drains.json"], "10.244.0.2:8080") || !strings.Contains(hidden["metrics.txt"], "\nsluice_services 1\n") {
		t.Errorf("too much is replaced:\n%s\n%s", hidden["status.json"], hidden["drains.json"])
	}
}

func TestBundleWhileSluiceIsDown(t *testing.T) {
	parts := entriesOf(t, bundleFlags{socket: filepath.Join(t.TempDir(), "none")})
	for _, name := range []string{"status.json", "drains.json", "plan.txt", "config.json", "metrics.txt", "log.txt"} {
		if !strings.Contains(parts[name+".error"], "no sluice is running") {
			t.Errorf("%s: %q", name, parts[name+".error"])
		}
	}
	if parts["check.txt"] == "" || parts["version.txt"] == "" {
		t.Errorf("%q", parts)
	}
}
