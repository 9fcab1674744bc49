package wasm

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestMemoryOfAllPlugins: loading is refused beyond the limit, with the sum, and closing returns everything.
func TestMemoryOfAllPlugins(t *testing.T) {
	h := newHost(t, Options{Memory: 3 << 20})
	module := goodWAT(t)
	var plugins []*Plugin
	var full error
	for range 100 {
		p, err := h.Load(t.Context(), "test", module, nil)
		if err != nil {
			full = err
			break
		}
		plugins = append(plugins, p)
	}
	var memory *MemoryError
	if !errors.As(full, &memory) || memory.Limit != 3<<20 || memory.Others+memory.Bytes <= memory.Limit || len(plugins) < 2 ||
		!strings.Contains(full.Error(), "exceed the limit of 3.0 MiB for all plugins (pluginLimits.memoryMiB)") {
		t.Errorf("%d plugins, then %v", len(plugins), full)
	}
	var sum int64
	for _, p := range plugins {
		sum += int64(p.Stats().HostBytes)
		checkGood(t, p, sampleNow)
	}
	if used, limit := h.MemoryInUse(); used == 0 || used > sum || used > limit {
		t.Errorf("%d bytes in use, the plugins have %d, the limit is %d", used, sum, limit)
	}
	for _, p := range plugins {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if used, _ := h.MemoryInUse(); used != 0 {
		t.Errorf("%d bytes in use without plugins", used)
	}
	load(t, h, module, "")
}

// TestGrowthBeyondTheMemoryOfAllPlugins: memory.grow returns -1 while another plugin has the memory.
func TestGrowthBeyondTheMemoryOfAllPlugins(t *testing.T) {
	h := newHost(t, Options{Memory: 8 << 20})
	text := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), ";; EVIL", `(func $evil (param i32 i32 i64) (result i64)
	  (if (i32.eq (memory.grow (i32.const 64)) (i32.const -1)) (then (unreachable))) (local.get 2))`, 1)
	growing := load(t, h, wat(t, text), "")
	if err := decide(growing, 666, sampleNow); err != nil {
		t.Fatal(err)
	}
	other := load(t, h, wat(t, text), "")
	if err := decide(other, 666, sampleNow); err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("%v, want a trap of the guest", err)
	}
	if used, limit := h.MemoryInUse(); used > limit {
		t.Errorf("%d bytes of %d", used, limit)
	}
	if err := growing.Close(); err != nil {
		t.Fatal(err)
	}
	if err := decide(other, 666, sampleNow+10_000); err != nil {
		t.Errorf("with the memory of the other: %v", err)
	}
}

func TestInstancesHaveARate(t *testing.T) {
	var r instanceRate
	now := int64(1_000_000)
	created := 0
	for ms := range int64(10_000) { // asked for each millisecond
		if r.wait(now+ms, 50) == 0 {
			created++
		}
	}
	if want := instanceBurst + 50*10; created < want-1 || created > want {
		t.Errorf("%d instances in 10 s, want %d", created, want)
	}
	if wait := r.wait(now, 50); wait <= 0 || wait > 20*time.Millisecond {
		t.Errorf("a clock that has gone back: wait %s", wait)
	}
}

// TestLoadWaitsForMemoryOfTheCompiler: a plugin that has no room while another one is compiled is loaded afterwards.
func TestLoadWaitsForMemoryOfTheCompiler(t *testing.T) {
	requireChildren(t)
	module := goodWAT(t)
	h := newHost(t, Options{Compiler: childCommand("crash"), Memory: 1 << 20})
	load(t, newHost(t, Options{}), module, "") // fills the cache
	compiled, err := h.compiler.turns.Take(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.memory.reserve("compiler", 1<<20); err != nil {
		t.Fatal(err)
	}
	loaded := make(chan error)
	go func() {
		_, err := h.Load(t.Context(), "test", module, nil)
		loaded <- err
	}()
	h.memory.release(1 << 20)
	h.compiler.turns.Give(compiled)
	if err := <-loaded; err != nil {
		t.Error(err)
	}
	// Without a child, it is the plugins that have the memory.
	if err := h.memory.reserve("others", h.memory.limit-h.memory.inUse()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Load(t.Context(), "test", module, nil); !isMemoryError(err) {
		t.Errorf("%v, want a MemoryError", err)
	}
}
