package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// inForce is the configuration in force, and what has come of the last attempts to load the file and its plugins. activate sets
// it.
type inForce struct {
	mu        sync.Mutex
	cfg       *config.Config
	hash      string // of cfg
	succeeded time.Time
	err       error     // why the configuration, as it is in its file, is not in force; nil: it is
	since     time.Time // of err
	plugins   []plugins.Status
}

func (s *inForce) config() *config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}

// reason returns why the configuration, as it is in its file, is not in force; nil: it is.
func (s *inForce) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// change is what set has changed.
type change struct {
	cfg                  *config.Config // nil: the same as before
	hash                 string
	failed               bool // the file is not in force
	rejected, worksAgain bool // that is so for another reason than before, or it is in force again
}

// set records that cfg is in force, and why the file is not, nil if it is.
func (s *inForce) set(cfg *config.Config, err error) (c change) {
	now := time.Now()
	c.hash = cfg.Hash()
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.err != nil
	if s.cfg != nil && s.hash != c.hash {
		c.cfg = cfg
	}
	c.failed, c.worksAgain = err != nil, err == nil && failed
	c.rejected = c.failed && !(failed && s.err.Error() == err.Error())
	s.cfg, s.hash, s.err = cfg, c.hash, err
	if err == nil && !settingsRefused(s.plugins) {
		s.succeeded = now
	} else if err != nil && !failed {
		s.since = now
	}
	return c
}

// remindInterval is how often Events about what is not in force are repeated: an API server deletes Events after an hour.
const remindInterval = 45 * time.Minute

// reportChange logs what has changed about the configuration, and records an Event about what is not as it should be.
func (a *Agent) reportChange(c change) {
	switch {
	case c.rejected:
		a.configurationEvent()
	case c.worksAgain:
		a.log.Info("the configuration is in force again", "hash", c.hash)
		a.nodeEvent(false, kube.ReasonConfigurationApplied, "configuration is in force again, hash "+c.hash)
	case c.cfg != nil && !c.failed:
		a.log.Info("reloaded the configuration", "hash", c.hash)
	}
	if c.cfg != nil {
		a.logWarnings(c.cfg)
	}
}

// settingsRefused reports whether a plugin has refused settings of the configuration.
func settingsRefused(all []plugins.Status) bool {
	return slices.ContainsFunc(all, func(p plugins.Status) bool { return p.Settings })
}

// logWarnings logs what is valid in a configuration and has no effect.
func (a *Agent) logWarnings(cfg *config.Config) {
	for _, w := range cfg.Warnings() {
		a.log.Warn("configuration warning", "reason", w)
	}
}

// configurationEvent records an Event if the configuration in the file is not in force.
func (a *Agent) configurationEvent() {
	s := &a.inForce
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		a.nodeEvent(true, kube.ReasonConfigurationRejected, api.ConfigurationProblem(s.hash, "", s.err.Error(), needsRestart(s.err)))
	}
}

// needsRestart reports whether only fields that need a restart are not in force.
func needsRestart(err error) bool {
	var restart *config.RestartError
	return errors.As(err, &restart) && err.Error() == restart.Error()
}

// pluginsLoaded records what has come of loading the plugins.
func (a *Agent) pluginsLoaded() {
	s, now := &a.inForce, a.plugins.Status()
	s.mu.Lock()
	before := s.plugins
	s.plugins = now
	s.mu.Unlock()
	for i := range before {
		old := &before[i]
		at := slices.IndexFunc(now, func(p plugins.Status) bool { return p.Name == old.Name })
		switch {
		case old.Err == nil:
		case at < 0:
			a.nodeEvent(false, kube.ReasonPluginLoaded, "plugin "+old.Name+": no policy uses it any more")
		case old.Loading(): // no Event has said anything
		case now[at].Err == nil:
			a.log.Info("the plugin is in force again", "plugin", old.Name, "digest", now[at].Digest)
			a.nodeEvent(false, kube.ReasonPluginLoaded, "plugin "+old.Name+": "+now[at].Digest+" is in force")
		}
	}
	for i := range now {
		p := &now[i]
		if p.Err != nil && !slices.ContainsFunc(before, func(old plugins.Status) bool {
			return old.Name == p.Name && old.Err != nil && old.Err.Error() == p.Err.Error()
		}) {
			a.pluginEvent(p)
		}
	}
}

// pluginEvent records an Event if a plugin of the configuration is not in force.
func (a *Agent) pluginEvent(p *plugins.Status) {
	if p.Err != nil && !p.Loading() {
		a.nodeEvent(true, kube.ReasonPluginLoadFailed, cmp.Or(p.Digest, "no revision")+" is in force: "+p.Err.Error())
	}
}

// remind repeats the Events about what is not in force, until ctx ends.
func (a *Agent) remind(ctx context.Context, tick <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		a.configurationEvent()
		a.inForce.mu.Lock()
		all := a.inForce.plugins
		a.inForce.mu.Unlock()
		for i := range all {
			a.pluginEvent(&all[i])
		}
	}
}

// configurationMetrics returns what is in force, for metrics.
func (a *Agent) configurationMetrics() metrics.Configuration {
	s := &a.inForce
	loaded := a.plugins.Status()
	s.mu.Lock()
	out := metrics.Configuration{Hash: s.hash, Successful: s.err == nil && !settingsRefused(loaded), SucceededAt: s.succeeded, ImagePulls: a.plugins.ImagePulls()}
	s.mu.Unlock()
	out.Objects = objectCounts(a.objectProblems())
	for _, p := range loaded {
		out.Plugins = append(out.Plugins, metrics.PluginInForce{Plugin: p.Name, Digest: p.Digest, LoadFailed: p.Err != nil && !p.Loading()})
	}
	for _, p := range revisions(a.config(), a.plugins) {
		out.Policies = append(out.Policies, metrics.PolicyInForce{Policy: p.Name, Revision: p.Revision})
	}
	return out
}

// nodeState returns what is in force, for the state socket.
func (a *Agent) nodeState() *api.Node {
	out := NodeState(a.config(), a.plugins)
	s := &a.inForce
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Configuration.Hash = s.hash // which the error belongs to
	if s.err != nil {
		at := s.since.UTC()
		out.Configuration.Error, out.Configuration.Since, out.Configuration.NeedsRestart = s.err.Error(), &at, needsRestart(s.err)
	}
	return out
}

// NodeState returns what of a configuration is in force: the plugins that are loaded, and the revisions of policies.
func NodeState(cfg *config.Config, set *plugins.Set) *api.Node {
	out := &api.Node{Configuration: api.Configuration{Hash: cfg.Hash()}, Plugins: []api.Plugin{}, Policies: revisions(cfg, set)}
	for _, p := range set.Status() {
		plugin := api.Plugin{Name: p.Name, Digest: p.Digest, Image: p.Image, Unconfined: p.Unconfined}
		if p.Err != nil {
			at := p.Since.UTC()
			plugin.Error, plugin.Since, plugin.Loading = p.Err.Error(), &at, p.Loading()
		}
		out.Plugins = append(out.Plugins, plugin)
	}
	return out
}

// revisions returns the revisions of all policies of a configuration file, with those that bindings with settings make, sorted by
// name. Objects may be many: the explanation of a Service has the revision of its own.
func revisions(cfg *config.Config, set *plugins.Set) []api.Policy {
	out := []api.Policy{}
	for _, p := range cfg.FileOnly().PolicySet().All() {
		out = append(out, api.Policy{Name: p.Name, Revision: policy.Revision(p, set.Get), Preset: p.Preset})
	}
	slices.SortFunc(out, func(p, q api.Policy) int {
		return cmp.Or(cmp.Compare(p.Name, q.Name), cmp.Compare(p.Revision, q.Revision))
	})
	return slices.Compact(out)
}
