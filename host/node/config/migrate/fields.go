package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/strictyaml"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// migration is the state of KubeProxy: the fields not handled yet and the result so far.
type migration struct {
	in              map[string]any
	out             map[string]any
	backend         string
	moved           map[string]string // fields of out that had another path in the input
	notes           []Note
	omittedDefaults []string // fields omitted because they have sluice's default
	errs            []error  // errors that parsing the result does not find
	unresolved      string   // the variable in --hostname-override
}

func newMigration(in *kubeProxyInput) (*migration, error) {
	m := &migration{
		in:    in.config,
		out:   map[string]any{"apiVersion": config.APIVersion, "kind": config.Kind},
		moved: map[string]string{},
	}
	if m.in == nil {
		m.in = map[string]any{}
	}
	m.applyFlags(in.flags, in.configs > 0)
	if len(m.errs) > 0 {
		return nil, errors.Join(m.errs...)
	}
	delete(m.in, "apiVersion")
	delete(m.in, "kind")
	removeEmpty(m.in)
	m.lenient(in)
	m.fromCluster(in.cluster)
	return m, nil
}

// lenient reports and removes what kube-proxy ignores: it decodes a file leniently if it cannot decode it strictly.
func (m *migration) lenient(in *kubeProxyInput) {
	for _, text := range in.twice {
		_, key, _ := strings.Cut(text, `key "`)
		key, _, _ = strings.Cut(key, `"`)
		m.note(Changed, key, "%s: kube-proxy uses the last one", text)
	}
	if m.in["metadata"] != nil {
		delete(m.in, "metadata")
		m.note(Changed, "metadata", "dropped: kube-proxy ignores it")
	}
	for _, field := range slices.Sorted(maps.Keys(formerFields())) {
		if m.take(field) != nil {
			m.note(Changed, field, "dropped: kube-proxy has ignored it since Kubernetes %s", formerFields()[field])
		}
	}
}

// removeEmpty removes null fields and empty objects.
func removeEmpty(m map[string]any) {
	for k, v := range m {
		sub, isMap := v.(map[string]any)
		if isMap {
			removeEmpty(sub)
		}
		if v == nil || isMap && len(sub) == 0 {
			delete(m, k)
		}
	}
}

func (m *migration) note(kind NoteKind, path, format string, args ...any) {
	m.notes = append(m.notes, Note{kind, path, fmt.Sprintf(format, args...)})
}

func (m *migration) errorf(format string, args ...any) {
	m.errs = append(m.errs, fmt.Errorf(format, args...))
}

// take removes a field from the input and returns it, or nil if it does not exist.
func (m *migration) take(path string) any {
	section, name, in := cutPath(path, m.in)
	v := in[name]
	delete(in, name)
	if section != "" && in != nil && len(in) == 0 {
		delete(m.in, section)
	}
	return v
}

func (m *migration) stringAt(path string) string {
	_, name, in := cutPath(path, m.in)
	s, _ := in[name].(string)
	return s
}

// cutPath splits a path and returns the object that contains its last field, or nil if it does not exist.
func cutPath(path string, tree map[string]any) (section, name string, in map[string]any) {
	section, name, nested := strings.Cut(path, ".")
	if !nested {
		return "", path, tree
	}
	in, _ = tree[section].(map[string]any)
	return section, name, in
}

func (m *migration) put(path string, v any) {
	section, name, in := cutPath(path, m.out)
	if in == nil {
		in = map[string]any{}
		m.out[section] = in
	}
	in[name] = v
}

// parse parses the result and returns errors with the paths of the input.
func (m *migration) parse() (*config.Config, error) {
	raw, err := json.Marshal(m.out)
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	c, err := config.Parse(raw, "")
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return c, err
	}
	errs := slices.Clone(list.Unwrap())
	for i, e := range errs {
		var p strictyaml.FieldError
		if errors.As(e, &p) {
			p.Path, p.Line = cmp.Or(m.moved[p.Path], p.Path), 0 // the line is that of the result
			errs[i] = p
		}
		if p.Path == "mode" {
			errs[i] = fmt.Errorf("mode: %s is not a mode of kube-proxy on Linux: iptables, ipvs, nftables", strictyaml.Describe(m.out["mode"]))
		}
	}
	return nil, errors.Join(errs...)
}

// omitDefaults removes the fields that have sluice's default value.
func (m *migration) omitDefaults(full *config.Config) {
	try := func(tree map[string]any, name, path string) {
		v := tree[name]
		delete(tree, name)
		if c, err := m.parse(); err == nil && c.Equal(full) {
			if was := m.moved[path]; was != "" {
				path = was
			}
			m.omittedDefaults = append(m.omittedDefaults, path)
			return
		}
		tree[name] = v
	}
	for _, k := range slices.Sorted(maps.Keys(m.out)) {
		if sub, ok := m.out[k].(map[string]any); ok {
			for _, name := range slices.Sorted(maps.Keys(sub)) {
				try(sub, name, k+"."+name)
			}
			if len(sub) == 0 {
				delete(m.out, k)
			}
		} else if k != "apiVersion" && k != "kind" {
			try(m.out, k, k)
		}
	}
	if len(m.omittedDefaults) > 0 {
		slices.Sort(m.omittedDefaults)
		m.note(Omitted, strings.Join(m.omittedDefaults, ", "), "omitted: same as sluice's default")
	}
}
