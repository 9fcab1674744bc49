package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// maxMergedSettings bounds the settings of a plugin for one Service, in bytes: those of the policy with those of the Service.
// Without it, a short annotation on many Services would take as much memory as many copies of the policy's settings.
const maxMergedSettings = 32 << 10

// maxQuoted is the length at which names from an annotation are cut in errors.
const maxQuoted = 100

// WithSettings returns the policy with other settings: objects by name of a plugin of the chain or the shadow, whose top-level
// fields replace those of the plugin's settings. It is for the settings of a binding.
func (p *Policy) WithSettings(objects map[string]string) (*Policy, error) {
	q := p.clone()
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		fields, err := parseObject([]byte(objects[name]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		found := false
		for s := range q.All() {
			if s.name() != name {
				continue
			}
			found = true
			if s.Settings, err = mergeSettings(s.Settings, fields); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		if !found {
			return nil, p.noPlugin(name)
		}
	}
	return q, nil
}

// withServiceSettings returns the policy with the settings of a Service: a JSON object with an object for each plugin of the
// chain whose settings it changes. Only fields that the policy allows may be set. The shadow gets what its plugins allow; it has
// no say in whether the settings are in force.
func (p *Policy) withServiceSettings(text string) (*Policy, error) {
	if len(text) > model.MaxSettings {
		return nil, fmt.Errorf("longer than %d bytes", model.MaxSettings)
	}
	objects, err := parseObject([]byte(text))
	if err != nil {
		return nil, err
	}
	q := p.clone()
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		fields, err := parseObject(objects[name])
		if err != nil {
			return nil, fmt.Errorf("%.*q: %w", maxQuoted, name, err)
		}
		found := false
		for i := range q.Steps {
			if s := &q.Steps[i]; s.Plugin == name {
				found = true
				if err := s.setOwn(p.Name, fields); err != nil {
					return nil, err
				}
			}
		}
		if !found {
			return nil, (&Policy{Name: p.Name, Steps: p.Steps}).noPlugin(name)
		}
		for i := range q.Shadow {
			if s := q.Shadow[i]; s.name() == name && s.setOwn(p.Name, fields) == nil {
				q.Shadow[i] = s
			}
		}
	}
	return q, nil
}

// setOwn sets fields of the settings that a Service sets.
func (s *Step) setOwn(policy string, fields map[string]json.RawMessage) error {
	name := s.name()
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(s.ServiceSettings, field) {
			return fmt.Errorf("%s.%.*q: policy %s does not let Services set it (%s)", name, maxQuoted, field, policy, allowed(s))
		}
	}
	if len(fields) == 0 {
		return nil
	}
	merged, err := mergeSettings(s.Settings, fields)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(merged) > maxMergedSettings {
		return fmt.Errorf("%s: %d bytes with the settings of policy %s, the limit is %d", name, len(merged), policy, maxMergedSettings)
	}
	s.Own, s.PolicySettings, s.Settings = true, s.Settings, merged
	return nil
}

// name returns the plugin's name in the configuration.
func (s *Step) name() string {
	name, _ := CutShadow(s.Plugin)
	return name
}

// clone returns a copy whose steps can be changed.
func (p *Policy) clone() *Policy {
	q := *p
	q.Steps, q.Shadow = slices.Clone(p.Steps), slices.Clone(p.Shadow)
	return &q
}

func allowed(s *Step) string {
	if len(s.ServiceSettings) == 0 {
		return "allowed: none"
	}
	return "allowed: " + strings.Join(s.ServiceSettings, ", ")
}

// noPlugin is the error of settings for a plugin that the policy does not have.
func (p *Policy) noPlugin(name string) error {
	var names []string
	for s := range p.All() {
		if !slices.Contains(names, s.name()) {
			names = append(names, s.name())
		}
	}
	return fmt.Errorf("policy %s has no plugin %.*q (plugins: %s)%s", p.Name, maxQuoted, name, strings.Join(names, ", "), FormerPlugin(name))
}

// parseObject returns the members of a JSON object. A name that occurs twice is an error: parsers differ in which value they use.
func parseObject(text []byte) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	d := json.NewDecoder(bytes.NewReader(text))
	first, err := d.Token()
	if err != nil {
		return nil, jsonError(err)
	}
	if first != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, jsonError(err)
		}
		name, _ := token.(string) // names of members are strings
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%.*q: set twice", maxQuoted, name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, jsonError(err)
		}
		out[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, jsonError(err)
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return nil, fmt.Errorf("invalid JSON: unexpected text after the object, at byte %d", d.InputOffset())
	}
	return out, nil
}

func jsonError(err error) error {
	return fmt.Errorf("invalid JSON: %w", err)
}

// mergeSettings returns canonical settings in which fields replace those of an object, "" for none.
func mergeSettings(object string, fields map[string]json.RawMessage) (string, error) {
	all := map[string]any{}
	if object != "" {
		base, err := parseObject([]byte(object))
		if err != nil {
			return "", err
		}
		for name, value := range base {
			all[name] = value
		}
	}
	for name, value := range fields {
		v, err := canonical(value)
		if err != nil {
			return "", fmt.Errorf("%.*q: %w", maxQuoted, name, err)
		}
		all[name] = v
	}
	text, err := json.Marshal(all) // sorts names
	return string(text), err
}

// CanonicalSettings returns the canonical text of settings, a JSON object.
func CanonicalSettings(text []byte) (string, error) {
	fields, err := parseObject(text)
	if err != nil {
		return "", err
	}
	return mergeSettings("", fields)
}

// SettingsFields returns the names of the top-level fields of settings, sorted.
func SettingsFields(text string) ([]string, error) {
	fields, err := parseObject([]byte(text))
	return slices.Sorted(maps.Keys(fields)), err
}

// maxNesting bounds the depth of a Service's settings: plugins parse them recursively.
const maxNesting = 32

// canonical returns a JSON value without white space, with the members of objects sorted and numbers as they are written, so that
// equal settings are equal texts.
func canonical(value json.RawMessage) (any, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	v, err := canonicalValue(d, 0)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func canonicalValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("nested deeper than %d levels", maxNesting)
	}
	token, err := d.Token()
	if err != nil {
		return nil, jsonError(err)
	}
	switch token {
	case json.Delim('{'):
		out := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, jsonError(err)
			}
			name, _ := key.(string)
			if _, twice := out[name]; twice {
				return nil, fmt.Errorf("%.*q: set twice", maxQuoted, name)
			}
			if out[name], err = canonicalValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return out, err
	case json.Delim('['):
		out := []any{}
		for d.More() {
			v, err := canonicalValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err := d.Token()
		return out, err
	}
	return token, nil
}
