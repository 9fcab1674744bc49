package agent

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// stopWait bounds how long the agent waits at its end for plugin calls that are running, and endWait for these and for the tasks
// in the background. The process ends within 2 s.
const (
	stopWait = time.Second
	endWait  = stopWait + 250*time.Millisecond
	// closeWait is longer than closing takes on a node that is not busy.
	closeWait = 100 * time.Millisecond
)

// reserveCPU lets the engine run while so many plugins do, also on a single CPU: the Go scheduler cannot preempt a guest.
func reserveCPU(plugins int) {
	if runtime.GOMAXPROCS(0) < 1+plugins {
		runtime.GOMAXPROCS(1 + plugins)
	}
}

// cpuPercent returns the limit of the plugins' CPU time. Programming once does not wait for CPU time.
func (a *Agent) cpuPercent(cfg *config.Config) int {
	if a.opts.Once {
		return 0
	}
	return cfg.PluginLimits.CPUPercent
}

// limitPlugins divides the CPU time among the plugins of a configuration that policies use.
func (a *Agent) limitPlugins(cfg *config.Config) {
	var names []string
	for _, p := range cfg.Plugins {
		if len(cfg.SettingsOf(p.Name)) > 0 {
			names = append(names, p.Name)
		}
	}
	if slices.ContainsFunc(cfg.Policies, func(p config.Policy) bool { return len(p.Shadow) > 0 }) {
		reserveCPU(2)
	}
	a.calls.Limit(a.cpuPercent(cfg), names)
}

// end waits for the tasks in the background, whose context has ended, and closes the plugins. What takes longer ends with the
// process: a task may be rewriting or instantiating a module, or wait for the kernel.
func (a *Agent) end(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		a.background.Wait()
		a.closePlugins(ctx)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endWait):
		a.log.Warn("a task in the background did not end; it ends with the process")
	}
}

// closePlane closes the data plane. It does not wait for the kernel, which closes sockets at the end of the process too: on a
// busy node, it takes seconds for one of nf_tables.
func (a *Agent) closePlane() error {
	closed := make(chan error, 1)
	go func() { closed <- a.plane.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeWait):
		return nil
	}
}

// closePlugins ends all plugin calls and closes the plugins. A call that does not end in time ends with the process.
func (a *Agent) closePlugins(ctx context.Context) {
	if !a.calls.Stop(stopWait) {
		a.log.Warn("a plugin call did not end; its plugin is not closed")
		return
	}
	a.plugins.Close(ctx)
}

// pluginStats returns the statistics of all plugins and of their calls.
func (a *Agent) pluginStats() []metrics.PluginStats {
	all, calls := a.plugins.Stats(), a.calls.Stats()
	for i := range all {
		s := calls[all[i].Plugin]
		all[i].Queued, all[i].CPU, all[i].Throttled = s.Queued, s.CPU, s.Throttled
	}
	return all
}
