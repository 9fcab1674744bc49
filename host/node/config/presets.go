package config

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

//go:embed presets.yaml
var presetsFile []byte

// Presets returns the policies that come with sluice, which need no definition.
func Presets() []Policy {
	raw, _, _ := split(presetsFile)[0].ToJSON() // a test parses it
	c, _ := strictyaml.DecodeForm[Config](raw, form())
	for i := range c.Policies {
		c.Policies[i].Preset = c.Policies[i].Name
	}
	return c.Policies
}

// presets gives policies with a preset its plugins, adds the presets that are named wherever a policy is, unless the file has a
// policy of that name, and adds their plugins from pluginDir, unless the file has plugins of these names.
func (p *parser) presets(c *Config) {
	shipped := Presets()
	find := func(list []Policy, name string) *Policy {
		if i := slices.IndexFunc(list, func(q Policy) bool { return q.Name == name }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	for i := range c.Policies {
		q, path := &c.Policies[i], fmt.Sprintf("policies[%d]", i)
		switch preset := find(shipped, q.Preset); {
		case q.Preset == "" && len(q.Settings) > 0:
			p.errorf(path+".settings", "preset required: plugins have settings of their own")
		case q.Preset == "":
		case preset == nil:
			all := names(shipped, func(s Policy) string { return s.Name })
			p.errorf(path+".preset", "no preset %q%s (presets: %s)", q.Preset, spelling.DidYouMean(q.Preset, all), strings.Join(all, ", "))
		default:
			p.expand(path, q, preset)
		}
	}
	for _, name := range c.named() {
		if preset := find(shipped, name); preset != nil && find(c.Policies, name) == nil {
			c.Policies = append(c.Policies, *preset)
		}
	}
	for i := range c.Policies {
		if find(shipped, c.Policies[i].Preset) == nil {
			continue
		}
		for _, s := range c.Policies[i].Plugins {
			if !slices.ContainsFunc(c.Plugins, func(m Plugin) bool { return m.Name == s.Name }) {
				m, _ := strictyaml.DecodeForm[Plugin]([]byte("{}"), form())
				m.Name, m.File = s.Name, filepath.Join(c.PluginDir, s.Name+".wasm")
				c.Plugins = append(c.Plugins, *m)
			}
		}
	}
}

// expand gives a policy the plugins of its preset, with settings over theirs.
func (p *parser) expand(path string, q, preset *Policy) {
	chain := Chain(preset.Plugins)
	if len(q.Plugins) == 0 {
		q.Plugins, q.IgnoreHints = slices.Clone(preset.Plugins), q.IgnoreHints || preset.IgnoreHints
	} else if Chain(q.Plugins) != chain { // an effective configuration has both
		p.errorf(path+".plugins", "not those of preset %s, %s: leave them out, or the preset", q.Preset, chain)
		return
	}
	settings := map[string]string{}
	for name, text := range q.Settings {
		settings[name] = string(text)
	}
	built := q.Build()
	merged, err := built.WithSettings(settings)
	if err != nil {
		p.errorf(path+".settings", "%w", err)
		return
	}
	for i := range q.Plugins {
		q.Plugins[i].Settings = Settings(merged.Steps[i].Settings)
	}
}

// Chain returns the names of the plugins of a chain as people see them.
func Chain(steps []Step) string {
	return strings.Join(names(steps, func(s Step) string { return s.Name }), " → ")
}

// named returns the names that the configuration has where a policy is attached to Services.
func (c *Config) named() (all []string) {
	for i := range c.Bindings {
		all = append(all, c.Bindings[i].Policy)
	}
	for i := range c.Allow {
		all = append(all, c.Allow[i].Policies...)
	}
	return append(all, c.DefaultPolicy)
}
