package policy

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// loader finds the current revision of a plugin by its name, and what those of a policy need.
type loader struct {
	plugins   func(string) (Plugin, error)
	revisions map[*Policy]cachedRevision
	digester  digester
}

// Needs returns the needs of the loaded plugins of a policy, and of those of its shadow.
func (l *loader) Needs(p *Policy) (enforced, shadow uint32) {
	enforced, _ = l.asks(p.Steps, nil)
	shadow, _ = l.asks(p.Shadow, nil)
	return enforced, shadow
}

// asks returns the needs of the loaded plugins of a chain, and appends the keys that they declare to keys, each once.
func (l *loader) asks(steps []Step, keys []string) (needs uint32, _ []string) {
	for _, s := range steps {
		plugin, err := l.plugins(s.Plugin)
		if err != nil {
			continue
		}
		needs |= plugin.Needs(s.Configured())
		for _, k := range plugin.Keys(s.Configured()) {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return needs, keys
}

// Declared are the kinds of objects whose values plugins declare, apart from the Service.
type Declared struct{ Pods, Nodes, Namespace, Load bool }

// Declares returns what the loaded plugins of policies declare, which may be nil.
func (l *loader) Declares(policies ...*Policy) (d Declared) {
	for _, p := range policies {
		if p == nil {
			continue
		}
		_, keys := l.asks(p.Steps, nil)
		_, keys = l.asks(p.Shadow, keys)
		for _, k := range keys {
			kind, _, _ := abi.KeyKind(k)
			d.Pods = d.Pods || abi.IsPodKey(k)
			d.Nodes = d.Nodes || kind == abi.KeyNodeLabel
			d.Namespace = d.Namespace || kind == abi.KeyNamespaceLabel
			d.Load = d.Load || kind == abi.KeyLoad
		}
	}
	return d
}

// LongAnnotations returns the annotations of a Service that plugins of its policy declare and that are too long for them, sorted.
func (l *loader) LongAnnotations(svc *model.Service, p *Policy) (keys []string) {
	if svc.Annotations == "" || p == nil {
		return nil
	}
	for step := range p.All() {
		plugin, err := l.plugins(step.Plugin)
		if err != nil {
			continue
		}
		for _, k := range plugin.Keys(step.Configured()) {
			kind, name, _ := abi.KeyKind(k)
			if kind == abi.KeyServiceAnnotation && svc.Annotations.TooLong(name) && !slices.Contains(keys, name) {
				keys = append(keys, name)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// Revision returns the revision of a policy, see the function Revision. It costs a lookup for each plugin.
func (l *loader) Revision(p *Policy) string {
	if c, ok := l.revisions[p]; ok && c.isCurrent(p, l.plugins) {
		return c.text
	}
	codes := codesOf(p, l.plugins)
	if codes == nil {
		return ""
	}
	if len(l.revisions) >= maxRevisions {
		clear(l.revisions)
	}
	text := l.digester.policy(p, codes)
	l.revisions[p] = cachedRevision{codes, text}
	return text
}

// cachedRevision is the revision of a policy with the revisions of its plugins.
type cachedRevision struct {
	codes []string
	text  string
}

// isCurrent reports whether all plugins of the policy are loaded and none has changed.
func (c cachedRevision) isCurrent(p *Policy, plugins func(string) (Plugin, error)) bool {
	for i := range p.Steps {
		if plugin, err := plugins(p.Steps[i].Plugin); err != nil || plugin.Revision() != c.codes[i] {
			return false
		}
	}
	return true
}

// maxRevisions bounds the revisions that an Evaluator remembers.
const maxRevisions = 1024
