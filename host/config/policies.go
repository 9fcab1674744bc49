package config

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/imageref"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/spelling"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

const (
	maxCPUPercent = 1000 // of the plugins: ten cores
	maxMemoryMiB  = 64   // the host's limit of an instance's memory
	maxInstances  = 256
	// maxCompileSeconds is far above what the largest module takes on a slow processor.
	maxCompileSeconds = 600
	// defaultRepeatOneIn costs 2 to 3 percent of a plugin's fuel.
	defaultRepeatOneIn = 64
	maxRepeatOneIn     = 1_000_000
)

// Bounds of pluginLimits.memoryMiB. Compiling alone may take 208 MiB.
const minPluginMemoryMiB, maxPluginMemoryMiB = 240, 65536

func (p *parser) plugins(list []pluginEntry) []Plugin {
	var out []Plugin
	seen := map[string]int{}
	for i, e := range list {
		path := fmt.Sprintf("plugins[%d]", i)
		p.unique(path+".name", e.Name, i, seen, "plugins")
		m := Plugin{Name: e.Name, Digest: e.Digest}
		switch {
		case e.File == "" && e.Image == "":
			p.errorf(path+".file", "required, or image")
		case e.File != "" && e.Image != "":
			p.errorf(path+".image", "the plugin has a file as well; one of both is required")
		case e.File != "":
			m.File = p.path(e.File)
		default:
			var err error
			m.Image, err = imageref.Parse(e.Image)
			if tag, ok := imageref.IsTag(err); ok {
				err = &UnpinnedError{tag, p.images}
			}
			if err != nil {
				p.errorf(path+".image", "%w", err)
			}
		}
		switch v := e.Verify; {
		case v == nil:
		case e.Image == "":
			p.errorf(path+".verify", "only images have signatures; digest says what a file must be")
		case v.Key == "":
			p.errorf(path+".verify.key", "required: a file with a public key")
		default:
			m.VerifyKey = p.path(v.Key)
		}
		if e.Digest != "" {
			sum, ok := strings.CutPrefix(e.Digest, "sha256:")
			if _, err := hex.DecodeString(sum); !ok || err != nil || len(sum) != 64 || sum != strings.ToLower(sum) {
				p.errorf(path+".digest", "%q is not sha256: followed by 64 lowercase hexadecimal digits", e.Digest)
			}
		}
		if mem := e.Limits.MemoryMiB; mem != nil {
			if *mem < 1 || *mem > maxMemoryMiB {
				p.errorf(path+".limits.memoryMiB", "%d is not between 1 and %d", *mem, maxMemoryMiB)
			}
			m.Limits.MemoryMiB = int(*mem)
		}
		if n := e.Limits.Instances; n != nil {
			if *n < 2 || *n > maxInstances {
				p.errorf(path+".limits.instances", "%d is not between 2 and %d", *n, maxInstances)
			}
			m.Limits.Instances = int(*n)
		}
		switch m.Isolation = cmp.Or(e.Isolation, IsolateNone); m.Isolation {
		case IsolateNone, IsolateNamespace:
		default:
			p.errorf(path+".isolation", "%q: must be %s or %s", e.Isolation, IsolateNone, IsolateNamespace)
		}
		m.RepeatOneIn = defaultRepeatOneIn
		if n := e.RepeatOneIn; n != nil {
			if *n != 0 && *n < 2 || *n > maxRepeatOneIn {
				p.errorf(path+".repeatOneIn", "%d is neither 0 nor between 2 and %d", *n, maxRepeatOneIn)
			}
			m.RepeatOneIn = int(*n)
		}
		out = append(out, m)
	}
	return out
}

func (p *parser) policies(list []policyEntry, plugins []Plugin) []policy.Policy {
	var known []string
	for _, m := range plugins {
		known = append(known, m.Name)
	}
	var out []policy.Policy
	seen := map[string]int{}
	for i, e := range list {
		path := fmt.Sprintf("policies[%d]", i)
		p.unique(path+".name", e.Name, i, seen, "policies")
		q := policy.Policy{Name: e.Name}
		if e.Mode != nil {
			p.errorf(path+".mode", "has been replaced by shadow: plugins that are listed there are asked and compared, and never enforced")
		}
		switch e.FailurePolicy {
		case "", policy.LastGood.String():
		case policy.Default.String():
			q.OnFailure = policy.Default
		default:
			p.errorf(path+".failurePolicy", "%q: must be %s or %s", e.FailurePolicy, policy.LastGood, policy.Default)
		}
		q.MaxShedPercentPerSecond = p.maxShed(path+".maxShedPercentPerSecond", e.MaxShed)
		q.Guard = p.guard(path+".guard", e.Guard, len(e.Plugins))
		q.Panic = p.panicHold(path+".panic", e.Panic)
		if len(e.Plugins) == 0 && len(e.Shadow) == 0 && e.Panic == nil {
			p.errorf(path+".plugins", "at least one plugin, shadow, or panic, is required")
		}
		if q.IgnoreHints = e.IgnoreHints; q.IgnoreHints && len(e.Plugins) == 0 && len(e.Shadow) == 0 {
			p.errorf(path+".ignoreHints", "without plugins the default rules decide, which follow hints")
		}
		q.Steps, q.Shadow = p.steps(path+".plugins", e.Plugins, known), p.steps(path+".shadow", e.Shadow, known)
		for j := range q.Shadow {
			q.Shadow[j].Plugin = policy.ShadowPlugin(q.Shadow[j].Plugin)
		}
		out = append(out, q)
	}
	return out
}

// steps parses a chain of plugins.
func (p *parser) steps(path string, list []stepEntry, known []string) (out []policy.Step) {
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !slices.Contains(known, s.Name) {
			p.errorf(at+".name", "no plugin %q%s", s.Name, spelling.DidYouMean(s.Name, known))
		}
		out = append(out, policy.Step{
			Plugin: s.Name, Settings: p.settings(at+".settings", s.Settings),
			ServiceSettings: p.serviceSettings(at+".serviceSettings", s.ServiceSettings),
		})
	}
	return out
}

// maxServiceSettings bounds the fields that a Service may set, and maxFieldName the length of their names in bytes.
const maxServiceSettings, maxFieldName = 64, 253

// serviceSettings returns the names of fields, sorted.
func (p *parser) serviceSettings(path string, names []string) []string {
	if len(names) > maxServiceSettings {
		p.errorf(path, "%d fields, the limit is %d", len(names), maxServiceSettings)
		return nil
	}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case name == "":
			p.errorf(at, "required")
		case len(name) > maxFieldName:
			p.errorf(at, "%d bytes, the limit is %d", len(name), maxFieldName)
		case slices.Contains(names[:i], name):
			p.errorf(at, "%q: duplicate", name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

// bindingSettings sets the settings of a binding, by name of a plugin of its policy.
func (p *parser) bindingSettings(path string, settings map[string]json.RawMessage, policies []policy.Policy, b *policy.Binding) {
	i := slices.IndexFunc(policies, func(q policy.Policy) bool { return q.Name == b.Policy })
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		at := fmt.Sprintf("%s[%s]", path, name)
		text := p.settings(at, settings[name])
		if text == "" || i < 0 {
			continue // null, or another error is reported
		}
		if _, err := policies[i].WithSettings(map[string]string{name: text}); err != nil {
			p.errorf(at, "%w", err)
			continue
		}
		if b.Settings == nil {
			b.Settings = map[string]string{}
		}
		b.Settings[name] = text
	}
}

// settings returns the canonical JSON text of settings: sorted keys, no whitespace.
func (p *parser) settings(path string, raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	tree, _, _ := strictyaml.ParseJSON(raw)
	if _, ok := tree.(map[string]any); !ok {
		p.errorf(path, "%s is not an object", strictyaml.Describe(tree))
		return ""
	}
	b, err := json.Marshal(tree)
	if err != nil {
		p.errorf(path, "%w", err)
	}
	return string(b)
}

func (p *parser) bindings(list []bindingEntry, policies []policy.Policy) []policy.Binding {
	var out []policy.Binding
	for i, e := range list {
		path := fmt.Sprintf("bindings[%d]", i)
		for j, ns := range e.Namespaces {
			p.name(fmt.Sprintf("%s.namespaces[%d]", path, j), ns)
		}
		if e.Selector.empty() && len(e.Namespaces) == 0 && e.Nodes == nil {
			p.errorf(path+".selector", "matchLabels, matchExpressions, namespaces or nodes required; use defaultPolicy to select all Services")
		}
		b := policy.Binding{
			Namespaces: e.Namespaces, Selector: p.selector(path+".selector", &e.Selector), Nodes: p.nodes(path+".nodes", e.Nodes), Policy: e.Policy,
		}
		p.policyName(path+".policy", e.Policy, policies)
		p.bindingSettings(path+".settings", e.Settings, policies, &b)
		out = append(out, b)
	}
	return out
}

func (p *parser) policyName(path, name string, policies []policy.Policy) {
	var known []string
	for _, q := range policies {
		known = append(known, q.Name)
	}
	switch {
	case name == "":
		p.errorf(path, "required")
	case !slices.Contains(known, name):
		p.errorf(path, "no policy %q%s", name, spelling.DidYouMean(name, known))
	}
}

func (p *parser) unique(path, name string, i int, seen map[string]int, list string) {
	if j, dup := seen[name]; dup && name != "" {
		p.errorf(path, "%q: duplicate name of %s[%d]", name, list, j)
	}
	seen[name] = i
	p.name(path, name)
}

// name requires the syntax of Kubernetes object names, because names appear in annotations, logs and metrics.
func (p *parser) name(path, s string) {
	if s == "" {
		p.errorf(path, "required")
	} else if len(s) > 253 || !hasLabelSyntax(s, "-.", false) {
		p.errorf(path, "%.300q is not a name of lowercase letters, digits, '-' and '.'", s)
	}
}

func (p *parser) labelKey(path, s string) {
	prefix, name, has := strings.Cut(s, "/")
	if !has {
		prefix, name = "x", s
	}
	if len(prefix) > 253 || !hasLabelSyntax(prefix, "-.", false) || name == "" || len(name) > 63 || !hasLabelSyntax(name, "-._", true) {
		p.errorf(path, "%.300q is not a label key", s)
	}
}

func (p *parser) labelValue(path, s string) {
	if len(s) > 63 || s != "" && !hasLabelSyntax(s, "-._", true) {
		p.errorf(path, "%.300q is not a label value", s)
	}
}

// hasLabelSyntax reports whether s consists of letters and digits, with marks between them.
func hasLabelSyntax(s, marks string, upper bool) bool {
	for i, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', upper && r >= 'A' && r <= 'Z':
		case strings.ContainsRune(marks, r) && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
