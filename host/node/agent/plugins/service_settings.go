package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// UnknownServiceSettings returns warnings of fields that policies allow Services to set, and that the settings of the plugin do
// not have.
//
// Only the plugin knows its fields, so each is tried with null, which JSON decoders take for no value in a field of any type, and
// beside it another name that no plugin has. A plugin that refuses both for the same reason does not know the field. Those that
// ignore unknown fields, or refuse null, are not found out.
func (s *Set) UnknownServiceSettings(ctx context.Context, cfg *config.Config) (warnings []string) {
	for i := range cfg.Policies {
		p := cfg.Policies[i].Build()
		warnings = append(warnings, s.unknownFields(ctx, fmt.Sprintf("policies[%d].plugins", i), p.Steps)...)
		warnings = append(warnings, s.unknownFields(ctx, fmt.Sprintf("policies[%d].shadow", i), p.Shadow)...)
	}
	return warnings
}

// WrongOrders returns an error for each chain that is not in the order of roles. Of plugins that are not loaded nothing is known.
func (s *Set) WrongOrders(cfg *config.Config) (problems []string) {
	for i := range cfg.Policies {
		p := cfg.Policies[i].Build()
		for list, steps := range map[string][]policy.Step{"plugins": p.Steps, "shadow": p.Shadow} {
			if e := policy.CheckOrder(steps, s.Get); e != nil {
				e.Plugin, _ = policy.CutShadow(e.Plugin)
				e.Before, _ = policy.CutShadow(e.Before)
				problems = append(problems, fmt.Sprintf("policies[%d].%s[%d].name: %q: %v", i, list, e.Index, e.Plugin, e))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// unknownFields returns the warnings of a chain, whose field has a path.
func (s *Set) unknownFields(ctx context.Context, path string, steps []policy.Step) (warnings []string) {
	for i := range steps {
		step := &steps[i]
		s.mu.RLock()
		plugin := s.loaded[step.Plugin]
		s.mu.RUnlock()
		if plugin == nil {
			continue
		}
		name, _ := policy.CutShadow(step.Plugin)
		for _, field := range step.ServiceSettings {
			if reason := plugin.unknown(ctx, step, field); reason != "" {
				warnings = append(warnings, fmt.Sprintf("%s[%d].serviceSettings: %q: plugin %s has no such setting: %s", path, i, field, name, reason))
			}
		}
	}
	return warnings
}

// unknown returns why a plugin has no field of a name, "" if it has it: as its manifest says, or, without a schema, as it says
// itself.
func (p *loadedPlugin) unknown(ctx context.Context, step *policy.Step, field string) string {
	m := p.Manifest()
	if m.Settings == nil {
		return p.unknownField(ctx, step, field)
	}
	var names []string
	for _, s := range m.Settings {
		names = append(names, s.Name)
	}
	if slices.Contains(names, field) {
		return ""
	}
	if suggestion := spelling.DidYouMean(field, names); suggestion != "" {
		return strings.Trim(suggestion, " ()")
	}
	return "it has " + cmp.Or(strings.Join(names, ", "), "no settings")
}

// unknownField returns why a plugin refuses a field as unknown, "" if it does not.
func (p *loadedPlugin) unknownField(ctx context.Context, step *policy.Step, field string) (reason string) {
	const placeholder = "\x00"
	try := func(name string) string {
		fields := map[string]json.RawMessage{}
		if step.Settings != "" && json.Unmarshal([]byte(step.Settings), &fields) != nil {
			return ""
		}
		if _, ok := fields[name]; ok {
			return "" // the policy sets it, and has been checked
		}
		fields[name] = json.RawMessage("null")
		text, err := json.Marshal(fields)
		if err != nil {
			return ""
		}
		if _, err = p.Check(ctx, string(text)); err == nil {
			return ""
		}
		reason = err.Error()
		return strings.ReplaceAll(reason, name, placeholder)
	}
	other := try("no-such-setting-" + field)
	if own := try(field); own == "" || own != other {
		return ""
	}
	return reason
}
