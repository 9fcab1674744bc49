package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestNothingOfARunGoesOnAfterItsEnd puts the parts together as `sluice run` does, on a fake kernel. The mode is ipvs, so
// that nobody looks for what that mode has left in the real one.
func TestNothingOfARunGoesOnAfterItsEnd(t *testing.T) {
	squatter, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	plugin := filepath.Join(buildPlugins(t), "zone-spill.wasm")
	for _, c := range []struct {
		name, config string
		socket       string // in a folder of its own
		until        string // what is logged when it is asked to end; "": it ends by itself
		says         string // its error
	}{
		{"when it is asked to", "", "sock", "synced all services", ""},
		{"when it is asked to while it starts", "", "sock", "sluice runs", ""},
		{"when plugins are loaded", "plugins: [{name: p, file: " + plugin + "}]\npolicies: [{name: p, plugins: [{name: p}]}]\n", "sock", "plugin loaded", ""},
		{"when its socket cannot be made", "", "file/sock", "", "state socket: mkdir"},
		{"when it cannot have an address that it must", "bindAddressHardFail: true\nmetricsBindAddress: " + squatter.Addr().String() + "\n", "sock", "", "metrics (metricsBindAddress): listen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			leaks := goleak.IgnoreCurrent()
			dir := t.TempDir()
			write := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("file", "")
			text := "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nmode: ipvs\nhealthzBindAddress: ''\npluginCacheDir: " + t.TempDir() + "\n" + c.config
			if !strings.Contains(c.config, "metricsBindAddress") {
				text += "metricsBindAddress: ''\n"
			}
			write("sluice.yaml", text)
			if err := os.Mkdir(filepath.Join(dir, "m"), 0o755); err != nil {
				t.Fatal(err)
			}
			f := &runFlags{inputFlags: inputFlags{node: "n0", config: filepath.Join(dir, "sluice.yaml")}, socket: filepath.Join(dir, c.socket)}
			f.source = filepath.Join(dir, "m")
			p, err := f.newProxy()
			if err != nil {
				t.Fatal(err)
			}
			log := &testnet.Log{}
			p.log = slog.New(slog.NewTextHandler(log, nil))
			p.data = &dataPlane{backend: fake.Open(fake.NewKernel(fake.Options{})), cfg: p.cfg, log: p.log}
			plugins, closePlugins, err := openPlugins(t.Context(), p.cfg, p.log)
			if err != nil {
				t.Fatal(err)
			}
			p.plugins = plugins

			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, fmt.Errorf("nothing happens"))
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- p.keep(ctx) }()
			for c.until != "" && !strings.Contains(log.String(), c.until) && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			if c.until != "" {
				cancel()
			}
			select {
			case err = <-ended:
			case <-time.After(time.Minute):
				t.Fatalf("it goes on:\n%s", log)
			}
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("it ends with %v, want %q\n%s", err, c.says, log)
			}
			if c.until == "" && ctx.Err() != nil || !strings.Contains(log.String(), c.until) {
				t.Errorf("not by itself, or without %q:\n%s", c.until, log)
			}
			if err := p.data.close(); err != nil {
				t.Error(err)
			}
			closePlugins()
			if _, err := os.Lstat(filepath.Join(dir, c.socket)); err == nil {
				t.Error("its socket is there")
			}
			goleak.VerifyNone(t, leaks)
		})
	}
}
