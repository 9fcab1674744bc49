package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// Note describes how a field of a KubeProxyConfiguration was changed or why it was dropped.
type Note struct{ Path, Text string }

// String returns "path: text".
func (n Note) String() string { return n.Path + ": " + n.Text }

// API version and kind of the configuration that Migrate reads.
const (
	kubeProxyVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kubeProxyKind    = "KubeProxyConfiguration"
)

// Migrate converts a KubeProxyConfiguration to the equivalent SluiceConfiguration. The notes list every field that was changed
// or dropped, and why. Unknown fields, which kube-proxy ignores with a warning, are dropped. Values that kube-proxy rejects
// are errors; all are returned together.
func Migrate(b []byte) (text []byte, notes []Note, err error) {
	m, err := newMigration(b)
	if err != nil {
		return nil, nil, err
	}
	m.mode()
	m.addresses()
	m.detection()
	m.ipvs()
	m.moveKept()
	m.dropRest()
	full, err := m.parse()
	if err = errors.Join(append(m.errs, err)...); err != nil {
		return nil, nil, err
	}
	m.omitDefaults(full)
	slices.SortStableFunc(m.notes, func(a, b Note) int { return strings.Compare(a.Path, b.Path) })
	if text, err = yaml.Marshal(m.out); err != nil {
		return nil, nil, fmt.Errorf("write the configuration: %w", err)
	}
	return text, m.notes, nil
}

// migration is the state of Migrate: the fields not handled yet and the result so far.
type migration struct {
	in              map[string]any
	out             map[string]any
	backend         string
	moved           map[string]string // fields of out that had another path in the input
	notes           []Note
	omittedDefaults []string // fields omitted because they have sluice's default
	errs            []error  // errors that parsing the result does not find
}

func newMigration(b []byte) (*migration, error) {
	docs := strictyaml.SplitYAML(string(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))))
	if len(docs) != 1 {
		return nil, fmt.Errorf("%d documents: expected one %s", len(docs), kubeProxyKind)
	}
	raw, twice, err := docs[0].ToJSON()
	if err = errors.Join(err, twice); err != nil {
		return nil, err
	}
	tree, _, _ := strictyaml.ParseJSON(raw)
	in, ok := tree.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", strictyaml.Describe(tree))
	}
	if in["kind"] == "ConfigMap" {
		return nil, errors.New("kind: \"ConfigMap\": extract the configuration from its data (config.conf in kubeadm clusters)")
	}
	var errs []error
	for _, f := range []struct{ name, want string }{{"apiVersion", kubeProxyVersion}, {"kind", kubeProxyKind}} {
		if in[f.name] != f.want {
			errs = append(errs, fmt.Errorf("%s: %s: must be %s", f.name, strictyaml.Describe(in[f.name]), f.want))
		}
		delete(in, f.name)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	removeEmpty(in)
	return &migration{
		in:    in,
		out:   map[string]any{"apiVersion": APIVersion, "kind": Kind},
		moved: map[string]string{},
	}, nil
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

func (m *migration) note(path, format string, args ...any) {
	m.notes = append(m.notes, Note{path, fmt.Sprintf(format, args...)})
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

// mode determines kube-proxy's mode and thereby which sections of the file apply.
func (m *migration) mode() {
	v := m.take("mode")
	m.backend, _ = v.(string)
	switch {
	case v != nil && m.backend == "" && v != "":
		m.put("mode", v) // not a string: parsing the result returns an error
	case m.backend == ModeNFTables:
	case m.backend == "", m.backend == "iptables", m.backend == ModeIPVS:
		was := m.backend
		if m.backend == "" {
			m.backend, was = "iptables", "empty, which means iptables"
		}
		m.note("mode", "%s: %s follows the rules of kube-proxy's nftables mode: NodePorts are never served on loopback addresses", was,
			map[bool]string{true: "sluice's mode ipvs", false: "sluice"}[m.backend == ModeIPVS])
		if list, isList := m.in["nodePortAddresses"].([]any); len(list) == 0 && (isList || m.in["nodePortAddresses"] == nil) {
			m.in["nodePortAddresses"] = []any{"0.0.0.0/0", "::/0"}
			m.note("nodePortAddresses", "empty, which in mode %s means all addresses of the node: set explicitly", m.backend)
		}
	default:
		m.put("mode", v)
	}
}

// addresses applies kube-proxy's defaulting of listen addresses.
func (m *migration) addresses() {
	if s := m.stringAt("hostnameOverride"); s != "" {
		m.in["hostnameOverride"] = strings.ToLower(strings.TrimSpace(s))
	}
	bind, _ := netip.ParseAddr(m.stringAt("bindAddress"))
	for _, a := range []struct{ path, port, ipv6Default string }{
		{"metricsBindAddress", "10249", "[::1]:10249"},
		{"healthzBindAddress", "10256", "[::]:10256"},
	} {
		s := m.stringAt(a.path)
		if ip, err := netip.ParseAddr(s); err == nil {
			m.in[a.path] = net.JoinHostPort(ip.String(), a.port)
			m.note(a.path, "%s: kube-proxy uses port %s: set explicitly", s, a.port)
		} else if m.in[a.path] == nil || m.in[a.path] == "" {
			delete(m.in, a.path)
			if bind.Is6() && !bind.Is4In6() {
				m.in[a.path] = a.ipv6Default
				m.note(a.path, "empty, which with an IPv6 bindAddress means %s: set explicitly", a.ipv6Default)
			}
		}
	}
}

// detection drops the fields that detectLocalMode does not use.
func (m *migration) detection() {
	mode := m.stringAt("detectLocalMode")
	if mode == "" {
		mode = ClusterCIDR
	}
	for _, f := range []struct{ path, of string }{
		{"clusterCIDR", ClusterCIDR},
		{"detectLocal.bridgeInterface", BridgeInterface},
		{"detectLocal.interfaceNamePrefix", InterfaceNamePrefix},
	} {
		if s := m.stringAt(f.path); s != "" && mode != f.of {
			m.take(f.path)
			m.note(f.path, "dropped: only detectLocalMode %s uses it", f.of)
		}
	}
}

// moveKept copies the fields that exist in a SluiceConfiguration.
func (m *migration) moveKept() {
	masquerade, sync := "iptables", m.backend
	if m.backend == ModeNFTables {
		masquerade = ModeNFTables
	}
	for _, f := range []struct{ section, name string }{
		{masquerade, "masqueradeAll"}, {masquerade, "masqueradeBit"}, {sync, "minSyncPeriod"}, {sync, "syncPeriod"},
	} {
		path := f.section + "." + f.name
		switch v := m.take(path); v {
		case nil:
		case "", "0s": // kube-proxy treats 0s as the default
			m.omittedDefaults = append(m.omittedDefaults, path)
		default:
			m.put(f.name, v)
			m.moved[f.name] = path
		}
	}
	if file := m.stringAt("clientConnection.kubeconfig"); file != "" {
		m.note("clientConnection.kubeconfig", "%s: the file must exist for sluice too; without the field, sluice uses its Pod's service account", file)
	}
	for _, path := range keptFields() {
		switch v := m.take(path).(type) {
		case nil:
		case string:
			if v == "" {
				m.omittedDefaults = append(m.omittedDefaults, path)
			} else {
				m.put(path, v)
			}
		default:
			m.put(path, v)
		}
	}
}

// parse parses the result and returns errors with the paths of the input.
func (m *migration) parse() (*Config, error) {
	raw, err := json.Marshal(m.out)
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	c, err := Parse(raw, "")
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return c, err
	}
	errs := slices.Clone(list.Unwrap())
	for i, e := range errs {
		var p strictyaml.FieldError
		if errors.As(e, &p) && m.moved[p.Path] != "" {
			p.Path = m.moved[p.Path]
			errs[i] = p
		}
		if p.Path == "mode" {
			errs[i] = fmt.Errorf("mode: %s is not a mode of kube-proxy on Linux: iptables, ipvs, nftables", strictyaml.Describe(m.out["mode"]))
		}
	}
	return nil, errors.Join(errs...)
}

// omitDefaults removes the fields that have sluice's default value.
func (m *migration) omitDefaults(full *Config) {
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
		m.note(strings.Join(m.omittedDefaults, ", "), "omitted: same as sluice's default")
	}
}
