package config

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Policy is a chain of plugins, and what else decides.
type Policy struct {
	Name string `json:"name" check:"name"`
	// Preset is the policy of sluice's that Plugins and IgnoreHints are from; Settings, by name of the plugin, replace fields of
	// its settings.
	Preset   string              `json:"preset,omitempty"`
	Settings map[string]Settings `json:"settings,omitempty"`
	Plugins  []Step              `json:"plugins"`
	// Shadow is a second chain that is compared with what is in force.
	Shadow        []Step           `json:"shadow"`
	FailurePolicy policy.OnFailure `json:"failurePolicy"`
	IgnoreHints   bool             `json:"ignoreHints"`
	Panic         *Panic           `json:"panic"`
	Guard         *Guard           `json:"guard"`
	TrafficHint   string           `json:"trafficHint" check:"trafficHint?"`
	MaxShed       int              `json:"maxShedPercentPerSecond" default:"1" min:"1" max:"100"`
}

// Step is a plugin of a chain.
type Step struct {
	Name            string   `json:"name" check:"plugin"`
	Settings        Settings `json:"settings"`
	ServiceSettings []string `json:"serviceSettings" check:"settingName"`
}

// Panic is policy.Panic.
type Panic struct {
	Below int           `json:"belowPercent" required:"a percentage of the endpoints" min:"1" max:"100"`
	Hold  time.Duration `json:"hold" default:"5m" min:"1s" max:"1h" unit:"1s"`
}

// Guard is policy.Guard. A shorter window has too few connections, and failures in a longer one last too long.
type Guard struct {
	FailedPercent int           `json:"failedPercent" required:"how many more of a hundred connections may fail than without the policy" min:"1" max:"100"`
	Window        time.Duration `json:"window" default:"30s" min:"5s" max:"10m"`
}

// Binding attaches a policy to Services.
type Binding struct {
	Namespaces []string            `json:"namespaces" check:"name"`
	Selector   Selector            `json:"selector"`
	Nodes      *Nodes              `json:"nodes"` // nil: all
	Policy     string              `json:"policy" check:"policy"`
	Settings   map[string]Settings `json:"settings"` // by name of a plugin of the policy
}

// Nodes restricts a binding to some of the nodes.
type Nodes struct {
	Percent  *float64  `json:"percent"`
	Selector *Selector `json:"selector"`
}

// Selector is a label selector, as in Kubernetes.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []Requirement     `json:"matchExpressions"`
}

// Requirement is an item of matchExpressions.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator" values:"In,NotIn,Exists,DoesNotExist"`
	Values   []string `json:"values"`
}

// Allow lets the annotation sluice.dev/policy of Services choose policies.
type Allow struct {
	Namespaces []string `json:"namespaces" check:"name"`
	Policies   []string `json:"policies" check:"policy"`
}

// Build returns the policy for the core.
func (p *Policy) Build() policy.Policy {
	q := policy.Policy{
		Name: p.Name, Preset: p.Preset, Steps: buildSteps(p.Plugins), Shadow: buildSteps(p.Shadow), IgnoreHints: p.IgnoreHints, OnFailure: p.FailurePolicy,
		MaxShedPercentPerSecond: p.MaxShed, LongLived: p.TrafficHint == v1alpha1.LongLived,
	}
	for i := range q.Shadow {
		q.Shadow[i].Plugin = policy.ShadowPlugin(q.Shadow[i].Plugin)
	}
	if p.Panic != nil {
		q.Panic = policy.Panic(*p.Panic)
	}
	if p.Guard != nil {
		q.Guard = policy.Guard(*p.Guard)
	}
	return q
}

func buildSteps(steps []Step) (out []policy.Step) {
	for _, s := range steps {
		out = append(out, policy.Step{Plugin: s.Name, Settings: string(s.Settings), ServiceSettings: slices.Sorted(slices.Values(s.ServiceSettings))})
	}
	return out
}

func (b *Binding) build() policy.Binding {
	out := policy.Binding{Namespaces: b.Namespaces, Selector: b.Selector.build(), Policy: b.Policy}
	if n := b.Nodes; n != nil && n.Percent != nil {
		out.Nodes.Permille = int(math.Round(*n.Percent * 10))
	}
	if n := b.Nodes; n != nil && n.Selector != nil {
		out.Nodes.Selector = n.Selector.build()
	}
	for name, text := range b.Settings {
		if text == "" {
			continue
		}
		if out.Settings == nil {
			out.Settings = map[string]string{}
		}
		out.Settings[name] = string(text)
	}
	return out
}

func (s *Selector) build() (out policy.Selector) {
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = append(out, policy.Requirement{Key: key, Op: policy.In, Values: []string{s.MatchLabels[key]}})
	}
	ops := map[string]policy.Op{"In": policy.In, "NotIn": policy.NotIn, "Exists": policy.Exists, "DoesNotExist": policy.DoesNotExist}
	for _, x := range s.MatchExpressions {
		out = append(out, policy.Requirement{Key: x.Key, Op: ops[x.Operator], Values: x.Values})
	}
	return out
}

func (s *Selector) empty() bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// PolicySet returns a new policy set, which selects the policy of each Service port.
func (c *Config) PolicySet() *policy.Set {
	set := c.fileSet()
	set.SetObjects(c.objectPolicies())
	return set
}

// fileSet returns the policy set without objects.
func (c *Config) fileSet() *policy.Set {
	set := &policy.Set{Policies: map[string]*policy.Policy{}, Default: c.DefaultPolicy}
	for i := range c.Policies {
		q := c.Policies[i].Build()
		set.Policies[q.Name] = &q
	}
	for i := range c.Bindings {
		b := c.Bindings[i].build()
		if len(b.Settings) > 0 {
			b.Applied, _ = set.Policies[b.Policy].WithSettings(b.Settings) // bindings has checked it
		}
		set.Bindings = append(set.Bindings, b)
	}
	for _, a := range c.Allow {
		set.Allow = append(set.Allow, policy.Allow(a))
	}
	return set
}

// PluginSettings are settings of a plugin, "" for none, and the first field of the configuration that has them.
type PluginSettings struct{ Text, Field string }

// SettingsOf returns the distinct settings of a plugin, those of policies before those of bindings; nil if no policy uses it. In
// shadows a plugin has another name, see policy.ShadowPlugin. Services can have other settings, see policy.Step.
func (c *Config) SettingsOf(plugin string) []PluginSettings {
	var out []PluginSettings
	add := func(text, field string) {
		if !slices.ContainsFunc(out, func(o PluginSettings) bool { return o.Text == text }) {
			out = append(out, PluginSettings{text, field})
		}
	}
	name, shadow := policy.CutShadow(plugin)
	for i := range c.Policies {
		list, steps := "plugins", c.Policies[i].Plugins
		if shadow {
			list, steps = "shadow", c.Policies[i].Shadow
		}
		for j, s := range steps {
			if s.Name == name {
				add(string(s.Settings), fmt.Sprintf("policies[%d].%s[%d].settings", i, list, j))
			}
		}
	}
	for i, b := range c.fileSet().Bindings {
		if b.Applied == nil {
			continue
		}
		for s := range b.Applied.All() {
			if s.Plugin == plugin {
				add(s.Settings, fmt.Sprintf("bindings[%d].settings[%s]", i, name))
			}
		}
	}
	for _, s := range c.objectSettings(plugin) {
		add(s.Text, s.Field)
	}
	return out
}

// maxServiceSettings bounds the fields that a Service may set, maxFieldName the length of their names in bytes, maxPlainHTTP the
// registries without TLS, and maxRepeatOneIn repeatOneIn.
const maxServiceSettings, maxFieldName, maxPlainHTTP, maxRepeatOneIn = 64, 253, 64, 1_000_000

// unique reports names that exist before.
func (p *parser) unique(list string, names []string) {
	seen := map[string]int{}
	for i, name := range names {
		if j, dup := seen[name]; dup && name != "" {
			p.errorf(fmt.Sprintf("%s[%d].name", list, i), "%q: duplicate name of %s[%d]", name, list, j)
		}
		seen[name] = i
	}
}

// pluginList checks what the tags of plugins do not say.
func (p *parser) pluginList(list []Plugin) {
	p.unique("plugins", p.plugins)
	for i := range list {
		m, path := &list[i], fmt.Sprintf("plugins[%d]", i)
		hasImage := !m.Image.IsZero() || p.misfits.Covers(path+".image")
		switch {
		case m.File == "" && !hasImage:
			p.errorf(path+".file", "required, or image")
		case m.File != "" && hasImage:
			p.errorf(path+".file", "the plugin has an image as well; one of both is required")
		}
		if now := policy.FormerPlugin(strings.TrimSuffix(filepath.Base(m.File), ".wasm")); now != "" && filepath.Dir(m.File) == daemonSetPlugins {
			p.errorf(path+".file", "%s is not in the image%s", m.File, now)
		}
		if m.Verify.Key != "" && !hasImage {
			p.errorf(path+".verify", "only images have signatures; digest says what a file must be")
		}
		if n := m.RepeatOneIn; n != 0 && n < 2 || n > maxRepeatOneIn {
			p.errorf(path+".repeatOneIn", "%d is neither 0 nor between 2 and %d", n, maxRepeatOneIn)
		}
	}
}

// guardReadings is how many readings of outcomes a window of a guard has at least.
const guardReadings = 2

// policyList checks what the tags of policies do not say.
func (p *parser) policyList(c *Config) {
	p.unique("policies", p.policies)
	for i := range c.Policies {
		q, path := &c.Policies[i], fmt.Sprintf("policies[%d]", i)
		none := len(q.Plugins) == 0 && len(q.Shadow) == 0
		if none && q.Panic == nil && q.TrafficHint == "" {
			p.errorf(path+".plugins", "at least one plugin, shadow, panic, or trafficHint, is required")
		}
		if q.IgnoreHints && none {
			p.errorf(path+".ignoreHints", "without plugins the default rules decide, which follow hints")
		}
		if q.Guard != nil && len(q.Plugins) == 0 {
			p.errorf(path+".guard", "plugins required: a policy without them has nothing to fall back from")
		}
		if q.Guard != nil && q.Guard.Window < guardReadings*c.Signals.Period {
			p.errorf(path+".guard.window", "%s is less than %d times signals.period, %s", q.Guard.Window, guardReadings, c.Signals.Period)
		}
		for list, steps := range map[string][]Step{"plugins": q.Plugins, "shadow": q.Shadow} {
			for j := range steps {
				if k := slices.IndexFunc(steps[:j], func(s Step) bool { return s.Name == steps[j].Name }); k >= 0 && steps[j].Name != "" {
					p.errorf(fmt.Sprintf("%s.%s[%d].name", path, list, j), "%q: duplicate of %s[%d]: list the module in plugins under another name too", steps[j].Name, list, k)
				}
				p.distinct(fmt.Sprintf("%s.%s[%d].serviceSettings", path, list, j), "fields", maxServiceSettings, steps[j].ServiceSettings)
			}
		}
	}
}

func checkTrafficHint(s string) error {
	if s != v1alpha1.LongLived {
		return fmt.Errorf("%.100q: must be %s", s, v1alpha1.LongLived)
	}
	return nil
}

// bindings checks what the tags of bindings and of allow do not say.
func (p *parser) bindings(c *Config) {
	for i := range c.Bindings {
		b, path := &c.Bindings[i], fmt.Sprintf("bindings[%d]", i)
		if b.Selector.empty() && len(b.Namespaces) == 0 && b.Nodes == nil {
			p.errorf(path, "selector (matchLabels, matchExpressions), namespaces or nodes required; use defaultPolicy to select all Services")
		}
		p.selector(path+".selector", &b.Selector)
		p.nodes(path+".nodes", b.Nodes)
		j := slices.Index(p.policies, b.Policy)
		for _, name := range slices.Sorted(maps.Keys(b.Settings)) {
			if text := b.Settings[name]; text != "" && j >= 0 { // null, or another error is reported
				q := c.Policies[j].Build()
				if _, err := q.WithSettings(map[string]string{name: string(text)}); err != nil {
					p.errorf(fmt.Sprintf("%s.settings[%s]", path, name), "%w", err)
				}
			}
		}
	}
	for i := range c.Allow {
		path := fmt.Sprintf("allow[%d].policies", i)
		if len(c.Allow[i].Policies) == 0 {
			p.errorf(path, "required")
		}
		p.distinct(path, "", 0, c.Allow[i].Policies)
	}
}

func (p *parser) nodes(path string, n *Nodes) {
	if n == nil {
		return
	}
	if n.Percent == nil && n.Selector == nil {
		p.errorf(path, "percent or selector required")
	}
	if v := n.Percent; v != nil && (!(*v >= 0.1 && *v <= 100) || math.Abs(math.Round(*v*10)-*v*10) > 1e-6) {
		p.errorf(path+".percent", "%v is not a number from 0.1 to 100 with at most one decimal", *v)
	}
	if n.Selector != nil {
		if n.Selector.empty() {
			p.errorf(path+".selector", "matchLabels or matchExpressions required")
		}
		p.selector(path+".selector", n.Selector)
	}
}

// selector checks a label selector.
func (p *parser) selector(path string, s *Selector) {
	report := func(at string, err error) {
		if err != nil {
			p.errorf(at, "%w", err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		at := fmt.Sprintf("%s.matchLabels[%s]", path, key)
		report(at, checkLabelKey(key))
		report(at, checkLabelValue(s.MatchLabels[key]))
	}
	for i, x := range s.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		report(at+".key", checkLabelKey(x.Key))
		for k, v := range x.Values {
			report(fmt.Sprintf("%s.values[%d]", at, k), checkLabelValue(v))
		}
		switch x.Operator {
		case "In", "NotIn":
			if len(x.Values) == 0 {
				p.errorf(at+".values", "required with operator %s", x.Operator)
			}
		case "Exists", "DoesNotExist":
			if len(x.Values) > 0 {
				p.errorf(at+".values", "must be empty with operator %s", x.Operator)
			}
		}
	}
}
