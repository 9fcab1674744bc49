package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// page fetches a page of a server that may still be starting.
func page(t *testing.T, url string, code int) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	var text string
	testenv.Succeeds(t, url, func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if text = string(b); resp.StatusCode != code {
			return fmt.Errorf("%s, want %d", resp.Status, code)
		}
		return err
	})
	return text
}

// freeAddress returns an unused loopback address that no other process uses, so that its port stays free.
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

const manifests = "apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, externalIPs: [bad], ports: [{port: 80}]}\n"

func TestServesHealthMetricsAndConfiguration(t *testing.T) {
	servers := fmt.Sprintf("enableProfiling: true\nhealthzBindAddress: %s\nmetricsBindAddress: %s\n", freeAddress(t, 1), freeAddress(t, 2))
	r := newRig(t, servers)
	r.write("manifests/a.yaml", manifests)
	cfg := r.opts.Config
	stop := r.run()
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()

	page(t, "http://"+cfg.HealthzBindAddress+"/healthz", 200)
	page(t, "http://"+cfg.HealthzBindAddress+"/livez", 200)
	at := "http://" + cfg.MetricsBindAddress
	if got := page(t, at+"/proxyMode", 200); got != "nftables" {
		t.Errorf("/proxyMode: %q", got)
	}
	text := page(t, at+"/metrics", 200)
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
	r.configure(servers + "masqueradeAll: true\n")
	testenv.Eventually(t, "the condition", func() bool { return strings.Contains(page(t, at+"/configz", 200), `"masqueradeAll": true`) })
	page(t, at+"/debug/pprof/cmdline", 200)
}

func TestAddressInUseIsRetriedUnlessHardFail(t *testing.T) {
	squatter, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	address := "healthzBindAddress: ''\nmetricsBindAddress: " + squatter.Addr().String() + "\n"

	r := newRig(t, address)
	stop := r.run()
	testenv.Eventually(t, "the condition", func() bool { return strings.Contains(r.log.String(), "address already in use") })
	if err := stop(); err != nil {
		t.Errorf("bindAddressHardFail: false: %v", err)
	}

	r = newRig(t, address+"bindAddressHardFail: true\n")
	if err := r.wait(r.start(t.Context())); err == nil || !strings.Contains(err.Error(), "metricsBindAddress") {
		t.Errorf("bindAddressHardFail: true: %v", err)
	}
}
