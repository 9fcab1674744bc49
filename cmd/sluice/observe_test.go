package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

// page fetches a page of a server that may just be opening.
func page(t *testing.T, url string, code int) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	var last any
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		resp, err := client.Get(url)
		if last = err; err != nil {
			continue
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if last = resp.Status; resp.StatusCode == code {
			return string(b)
		}
	}
	t.Fatalf("%s: %v, want %d", url, last, code)
	return ""
}

// freeAddress gives one on loopback that only this process knows, so that nobody else takes its port meanwhile.
func freeAddress(t *testing.T, last byte) string {
	t.Helper()
	pid := os.Getpid()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, byte(pid>>8), byte(pid), last)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestARunningSluiceServesHealthMetricsAndItsConfiguration puts the parts together as `sluice run` does, over a folder
// and a fake kernel.
func TestARunningSluiceServesHealthMetricsAndItsConfiguration(t *testing.T) {
	folder := t.TempDir()
	text := "apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, externalIPs: [bad], ports: [{port: 80}]}\n"
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.HostnameOverride, cfg.EnableProfiling = "n0", true
	cfg.HealthzBindAddress, cfg.MetricsBindAddress = freeAddress(t, 1), freeAddress(t, 2)
	log := slog.New(slog.DiscardHandler)
	plugins, closePlugins, err := openPlugins(t.Context(), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	defer closePlugins()
	o := observe(cfg, plugins, log, nil)
	e := engine.New(engine.Options{
		Source:  dir.New(folder, dir.Options{Log: log, After: time.After, OnProblems: o.metrics.SetSourceProblems}),
		Backend: fake.Open(fake.NewKernel(fake.Options{})), Planner: planner.New(settings(cfg, []netip.Addr{}), plugins.get),
		Log: log, Observer: o.observers(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	stop := o.serve(ctx, func(err error) { t.Errorf("fatal: %v", err) })
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer func() { cancel(); ended.Wait(); stop() }()

	page(t, "http://"+cfg.HealthzBindAddress+"/healthz", 200)
	page(t, "http://"+cfg.HealthzBindAddress+"/livez", 200)
	at := "http://" + cfg.MetricsBindAddress
	if got := page(t, at+"/proxyMode", 200); got != "nftables" {
		t.Errorf("/proxyMode: %q", got)
	}
	text = page(t, at+"/metrics", 200)
	for _, line := range []string{
		"sluice_services 1\n", `kubeproxy_proxy_livez_total{code="200"} 1`, `sluice_source_problems{severity="error"} 1`,
		`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("/metrics without %s", line)
		}
	}
	var effective struct{ HostnameOverride, SyncPeriod string }
	if err := json.Unmarshal([]byte(page(t, at+"/configz", 200)), &effective); err != nil || effective.HostnameOverride != "n0" || effective.SyncPeriod != "30s" {
		t.Errorf("/configz: %+v, %v", effective, err)
	}
	next := *cfg
	next.MasqueradeAll = true
	o.config.Store(&next)
	if got := page(t, at+"/configz", 200); !strings.Contains(got, `"masqueradeAll": true`) {
		t.Errorf("/configz after a reload: %s", got)
	}
	page(t, at+"/debug/pprof/cmdline", 200)
}

func TestAnAddressThatIsTakenIsTriedAgainUnlessThatIsFatal(t *testing.T) {
	squatter, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	for _, hard := range []bool{false, true} {
		cfg := config.Default()
		cfg.MetricsBindAddress, cfg.HealthzBindAddress, cfg.BindAddressHardFail = squatter.Addr().String(), "", hard
		log := &testnet.Log{}
		o := observe(cfg, newPluginSet(nil, nil), slog.New(slog.NewTextHandler(log, nil)), nil)
		fatal := make(chan error, 1)
		stop := o.serve(t.Context(), func(err error) { fatal <- err })
		for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), "address already in use"); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("hard %t: nothing is said:\n%s", hard, log)
			}
		}
		stop()
		select {
		case err := <-fatal:
			if !hard || !strings.Contains(err.Error(), "metricsBindAddress") {
				t.Errorf("hard %t: fatal: %v", hard, err)
			}
		default:
			if hard {
				t.Error("bindAddressHardFail: nobody is told")
			}
		}
	}
}
