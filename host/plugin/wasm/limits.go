package wasm

import (
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// Limits of one plugin. A unit of fuel is about one instruction (see package meter).
type Limits struct {
	Module        meter.Limits
	Compile       CompileLimits
	MemoryPages   uint32 // of 64 KiB: maximum memory of the guest
	InitFuel      int64  // start function and _initialize together
	ConfigureFuel int64  // sluice_alloc, sluice_configure, sluice_needs and sluice_keys together; sluice_abi_version
	DecideFuel    int64  // one decision, including its sluice_alloc, plus …
	EndpointFuel  int64  // … this for each endpoint
	// CPU time, with Options.Process. Calls that exceed it fail.
	InitTime      time.Duration // start function and _initialize together
	ConfigureTime time.Duration // sluice_alloc, sluice_configure, sluice_needs and sluice_keys together; sluice_abi_version
	DecideTime    time.Duration // one decision, including its sluice_alloc
	LogLines      int           // per call
	LogBytes      int           // per call, all lines together
	LogPerSecond  int           // lines, in the time of requests; bursts of ten times as many
	Settings      int           // bytes
	Failures      int           // consecutive failures that suspend the plugin
	// InstancesPerSecond limits new instances for decisions, in the time of requests; 1 to 1000, bursts of 512.
	InstancesPerSecond int
}

// DefaultLimits returns limits for all guests. Go guests start with 4 MiB of memory, hence 64 MiB; memory is not reserved.
func DefaultLimits() Limits {
	return Limits{
		Module:        meter.DefaultLimits(),
		Compile:       DefaultCompileLimits(),
		MemoryPages:   1024,
		InitFuel:      200_000_000,
		ConfigureFuel: 100_000_000,
		DecideFuel:    20_000_000,
		EndpointFuel:  20_000,
		InitTime:      200 * time.Millisecond,
		ConfigureTime: 100 * time.Millisecond,
		DecideTime:    20 * time.Millisecond,
		LogLines:      16,
		LogBytes:      8 << 10,
		LogPerSecond:  10,
		Settings:      1 << 20,
		Failures:      3,

		InstancesPerSecond: 50,
	}
}

// OfflineLimits returns limits for commands that answer for no node: a call may take 1 s of CPU time. Fuel ends it in any case,
// so that the result does not depend on what else the machine does.
func OfflineLimits() Limits {
	l := DefaultLimits()
	l.InitTime, l.ConfigureTime, l.DecideTime = time.Second, time.Second, time.Second
	return l
}

// withDefaults sets zero fields to their defaults and refuses negative ones.
func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits()
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	dur := func(v *time.Duration, d time.Duration) {
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
	dur(&l.Compile.CPU, d.Compile.CPU)
	def(&l.Compile.Memory, d.Compile.Memory)
	if l.MemoryPages == 0 {
		l.MemoryPages = d.MemoryPages
	}
	l.MemoryPages = min(l.MemoryPages, 1<<16)
	l.Module.MemoryPages = min(l.Module.MemoryPages, l.MemoryPages)
	def(&l.InitFuel, d.InitFuel)
	def(&l.ConfigureFuel, d.ConfigureFuel)
	def(&l.DecideFuel, d.DecideFuel)
	def(&l.EndpointFuel, d.EndpointFuel)
	dur(&l.InitTime, d.InitTime)
	dur(&l.ConfigureTime, d.ConfigureTime)
	dur(&l.DecideTime, d.DecideTime)
	num(&l.LogLines, d.LogLines)
	num(&l.LogBytes, d.LogBytes)
	num(&l.LogPerSecond, d.LogPerSecond)
	num(&l.Settings, d.Settings)
	num(&l.Failures, d.Failures)
	num(&l.InstancesPerSecond, d.InstancesPerSecond)
	l.InstancesPerSecond = min(l.InstancesPerSecond, 1000)
	for _, v := range []struct {
		name  string
		value int64
	}{
		{"InitFuel", l.InitFuel}, {"ConfigureFuel", l.ConfigureFuel}, {"DecideFuel", l.DecideFuel}, {"EndpointFuel", l.EndpointFuel},
		{"InitTime", int64(l.InitTime)}, {"ConfigureTime", int64(l.ConfigureTime)}, {"DecideTime", int64(l.DecideTime)},
		{"LogLines", int64(l.LogLines)}, {"LogBytes", int64(l.LogBytes)}, {"LogPerSecond", int64(l.LogPerSecond)},
		{"Settings", int64(l.Settings)}, {"Failures", int64(l.Failures)},
		{"InstancesPerSecond", int64(l.InstancesPerSecond)},
		{"Compile.CPU", int64(l.Compile.CPU)}, {"Compile.Memory", l.Compile.Memory},
	} {
		if v.value < 0 {
			return l, fmt.Errorf("limit %s: %d is negative", v.name, v.value)
		}
	}
	return l, nil
}
