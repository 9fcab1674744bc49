package wasm

import (
	"fmt"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestPluginsOfAModuleShareItsCode: a second use of a module takes the memory of its instances only, and goes on when the first
// is closed.
func TestPluginsOfAModuleShareItsCode(t *testing.T) {
	h, module := newHost(t, Options{CacheDir: testenv.PluginCache(t)}), goGuest(t, "testdata/goguest")
	double := load(t, h, module, `{"Factor": 2}`)
	one, _ := h.MemoryInUse()
	triple := load(t, h, module, `{"Factor": 3}`)
	two, _ := h.MemoryInUse()
	t.Logf("the first use takes %.1f MiB, the second %.1f", float64(one)/(1<<20), float64(two-one)/(1<<20))
	if more := two - one; more > one/3 {
		t.Errorf("the second use takes %d bytes, the first %d", more, one)
	}
	if sum := double.Stats().HostBytes + triple.Stats().HostBytes; sum < uint64(two) || sum > 2*uint64(two) {
		t.Errorf("%d bytes in use, the plugins have %d", two, sum)
	}
	for _, p := range []*Plugin{double, triple} {
		if err := decide(p, 80, sampleNow); err != nil {
			t.Error(err)
		}
	}
	if err := double.Close(); err != nil {
		t.Fatal(err)
	}
	if err := decide(triple, 80, sampleNow); err != nil {
		t.Errorf("after the other plugin was closed: %v", err)
	}
	if err := triple.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := h.MemoryInUse(); left != 0 || len(h.codes) != 0 {
		t.Errorf("%d bytes in use, %d modules after all were closed", left, len(h.codes))
	}
}

// TestConcurrentLoadsShareCode: loads, decisions and closing at the same time leave nothing behind.
func TestConcurrentLoadsShareCode(t *testing.T) {
	h, module := newHost(t, Options{}), goodWAT(t)
	var all sync.WaitGroup
	errs := make(chan error, 64)
	for range 8 {
		all.Go(func() {
			for range 4 {
				p, err := h.Load(t.Context(), "test", module, nil)
				if err != nil {
					errs <- err
					return
				}
				if err := decide(p, 0, sampleNow); err != nil {
					errs <- fmt.Errorf("decide: %w", err)
				}
				if err := p.Close(); err != nil {
					errs <- fmt.Errorf("close: %w", err)
				}
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if left, _ := h.MemoryInUse(); left != 0 || len(h.codes) != 0 {
		t.Errorf("%d bytes in use, %d modules at the end", left, len(h.codes))
	}
}
