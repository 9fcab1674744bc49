package peer

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// quick returns options for a quick run with the kube-proxy in the cache and a new build of sluice.
func quick(t *testing.T) options {
	t.Helper()
	built, err := binaries.Find(append(binaries.Cluster(), binaries.KubeProxy)...)
	testenv.Require(t, err)
	testenv.RequireProgram(t, "nft", "nftables") // kube-proxy runs it
	testenv.DependOnSources(t)
	o := options{bin: t.TempDir(), kubeProxy: filepath.Join(built, binaries.KubeProxy)}
	o.setQuick()
	build(t, filepath.Join(o.bin, "sluice"), "cmd/sluice")
	return o
}

func build(t *testing.T, to, pkg string, env ...string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", to, "github.com/sluice-proxy/sluice/"+pkg)
	if env != nil {
		cmd.Args = slices.Insert(cmd.Args, 2, "-buildmode=c-shared")
		cmd.Env = append(os.Environ(), env...)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// TestDataPlaneIsMeasured makes a quick run and checks that every way has every value.
func TestDataPlaneIsMeasured(t *testing.T) {
	o := planeOptions{options: quick(t), rounds: 1, policy: filepath.Join(t.TempDir(), "zone-first.wasm")}
	build(t, o.policy, "examples/plugin-zone-first", "GOOS=wasip1", "GOARCH=wasm")
	results, planes, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	printPlanes(&text, results, planes)
	t.Log(text.String())
	if len(planes) != 1 || len(planes[0].rows) != len(ways()) {
		t.Fatalf("%d sizes", len(planes))
	}
	for _, row := range planes[0].rows {
		for i := range row.workload.metrics {
			for _, blocks := range row.blocks {
				if len(blocks) != 2 || blocks[0][i] <= 0 || blocks[1][i] <= 0 {
					t.Errorf("%s, %s: %v", row.workload.name, row.name, blocks)
				}
			}
		}
	}
}

// TestBothProxiesAreMeasured makes a quick run and checks that all values are present and plausible.
func TestBothProxiesAreMeasured(t *testing.T) {
	o := quick(t)
	b, err := o.measureAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	b.print(&text)
	t.Log(text.String())
	if len(b.Rows) != 1 {
		t.Fatalf("%d sizes", len(b.Rows))
	}
	for i, name := range []string{"kube-proxy", "sluice"} {
		c := &b.Rows[0].Proxies[i]
		for what, v := range map[string][]float64{
			"start": c.Start, "spread": c.StartAll, "CPU at the start": c.StartCPU, "bytes at the start": c.StartMiB, "restart": c.Restart, "changes": c.Changes,
			"CPU of changes": c.ChangeCPU, "resident": c.RSS, "peak": c.PeakRSS,
		} {
			if len(v) == 0 || median(v) <= 0 {
				t.Errorf("%s: %s: %v", name, what, v)
			}
		}
		if len(c.Changes) != o.changes[i] || len(c.AfterEvent) != o.changes[i] {
			t.Errorf("%s: %d changes, want %d", name, len(c.Changes), o.changes[i])
		}
		if median(c.StartAll) < median(c.Start) || median(c.PeakRSS) < median(c.RSS) {
			t.Errorf("%s: the last Service at %v, all at %v; resident %v, peak %v", name, c.Start, c.StartAll, c.RSS, c.PeakRSS)
		}
	}
	if k, s := b.Rows[0].Proxies[0].Watches, b.Rows[0].Proxies[1].Watches; s["services"] != 1 || s["endpointslices"] != 1 || !maps.Equal(k, s) {
		t.Errorf("kube-proxy watches %v, sluice %v", k, s)
	}
	if k, s := maxOf(b.Rows[0].Proxies[0].ChildPeakRSS), maxOf(b.Rows[0].Proxies[1].ChildPeakRSS); k == 0 || s != 0 {
		t.Errorf("children: kube-proxy's %v MiB, sluice's %v; the one runs nft, the other nothing", k, s)
	}
	messages := ""
	for _, v := range b.Rows[0].Proxies[1].Timeline {
		messages += strings.Join(v.Log, ";") + ";"
	}
	for _, want := range []string{"sluice started", "initial sync complete", "synced all services"} {
		if !strings.Contains(messages, want+";") {
			t.Errorf("the timeline lacks %q: %s", want, messages)
		}
	}
	if strings.Contains(text.String(), "NaN") {
		t.Error("the tables lack figures")
	}
}

func TestConnectTimesOutWithoutAnswer(t *testing.T) {
	lab, err := testnet.New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	site := node{lab: lab, name: "node"}
	if err := site.addHosts(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, stop := range site.stop {
			stop()
		}
	}()
	err = site.client.Do(func() error {
		endpoint, unused := netip.MustParseAddrPort("11.2.3.4:8080"), netip.MustParseAddrPort("10.96.0.1:8080")
		begin := time.Now()
		at, err := awaitServer(endpoint, 'p', begin, begin.Add(time.Minute))
		if err != nil || at.Before(begin) {
			t.Errorf("an endpoint that is there: %v, %v", at, err)
		}
		seen := false
		for try := 0; try < 50 && !seen; try++ { // the last connection may time out
			_, err = awaitServer(endpoint, '0', begin, time.Now())
			seen = err != nil && strings.Contains(err.Error(), `'p' answers`)
		}
		if !seen {
			t.Errorf("another one answers: %v", err)
		}
		if _, err := awaitServer(unused, anyServer, begin, begin.Add(50*time.Millisecond)); err == nil {
			t.Error("an unused address answers")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// rates returns noisy values.
func rates(seed uint64, n int, wobble, factor float64) (out []float64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range n {
		out = append(out, 10000*factor*(1+wobble*rng.NormFloat64()))
	}
	return out
}

func TestVerdictIgnoresDifferencesWithinNoise(t *testing.T) {
	for _, c := range []struct {
		name         string
		wobble       float64
		factor       float64
		moreIsBetter bool
		want         string
	}{
		{"the same", 0.02, 1, true, "no difference beyond noise"},
		{"a tenth more", 0.02, 1.1, true, "better"},
		{"a tenth less", 0.02, 0.9, true, "worse"},
		{"a tenth more time", 0.02, 1.1, false, "worse"},
		{"a tenth less time", 0.02, 0.9, false, "better"},
		{"a tenth less in much noise", 0.5, 0.9, true, "no difference beyond noise"},
	} {
		a, b := rates(1, 30, c.wobble, 1), rates(2, 30, c.wobble, c.factor)
		got, noise := stats.Ratios(a, b), stats.Noise(a)
		if v := verdict(got, noise, c.moreIsBetter); v != c.want {
			t.Errorf("%s: %s beside noise of %s: %q, want %q", c.name, got.Text(3), noise.Text(3), v, c.want)
		}
		if c.wobble < 0.1 && math.Abs(got.Median-c.factor) > 0.03 {
			t.Errorf("%s: ratio %s", c.name, got.Text(3))
		}
	}
}
