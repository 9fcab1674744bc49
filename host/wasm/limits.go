package wasm

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

// Limits bounds one plugin. Fuel is in units of wasm/meter: about one instruction.
type Limits struct {
	Module        meter.Limits
	MemoryPages   uint32 // of 64 KiB, what the guest may grow to
	InitFuel      int64  // start function and _initialize together
	ConfigureFuel int64  // sluice_alloc and sluice_configure; sluice_abi_version, sluice_needs
	DecideFuel    int64  // one decision, its sluice_alloc included …
	EndpointFuel  int64  // … and as much more for each endpoint
	LogLines      int    // a call
	LogBytes      int    // a call, all lines together
	LogPerSecond  int    // lines, over seconds of requests; ten times as many at once
	Settings      int    // bytes
	Failures      int    // in a row, before the plugin is suspended
}

// DefaultLimits is for Go guests too, which need 4 MiB of memory to begin with: 64 MiB. A guest that needs less takes
// less; nothing is reserved.
func DefaultLimits() Limits {
	return Limits{
		Module:        meter.DefaultLimits(),
		MemoryPages:   1024,
		InitFuel:      200_000_000,
		ConfigureFuel: 50_000_000,
		DecideFuel:    10_000_000,
		EndpointFuel:  20_000,
		LogLines:      16,
		LogBytes:      8 << 10,
		LogPerSecond:  10,
		Settings:      1 << 20,
		Failures:      3,
	}
}

// withDefaults fills in what is zero and refuses what is negative.
func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits()
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	num := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if l.Module == (meter.Limits{}) {
		l.Module = d.Module
	}
	if l.MemoryPages == 0 {
		l.MemoryPages = d.MemoryPages
	}
	l.MemoryPages = min(l.MemoryPages, 1<<16)
	l.Module.MemoryPages = min(l.Module.MemoryPages, l.MemoryPages)
	def(&l.InitFuel, d.InitFuel)
	def(&l.ConfigureFuel, d.ConfigureFuel)
	def(&l.DecideFuel, d.DecideFuel)
	def(&l.EndpointFuel, d.EndpointFuel)
	num(&l.LogLines, d.LogLines)
	num(&l.LogBytes, d.LogBytes)
	num(&l.LogPerSecond, d.LogPerSecond)
	num(&l.Settings, d.Settings)
	num(&l.Failures, d.Failures)
	for _, v := range []struct {
		name  string
		value int64
	}{
		{"InitFuel", l.InitFuel}, {"ConfigureFuel", l.ConfigureFuel}, {"DecideFuel", l.DecideFuel}, {"EndpointFuel", l.EndpointFuel},
		{"LogLines", int64(l.LogLines)}, {"LogBytes", int64(l.LogBytes)}, {"LogPerSecond", int64(l.LogPerSecond)},
		{"Settings", int64(l.Settings)}, {"Failures", int64(l.Failures)},
	} {
		if v.value < 0 {
			return l, fmt.Errorf("limit %s is %d", v.name, v.value)
		}
	}
	return l, nil
}
