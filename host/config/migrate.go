package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
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
		m.note("mode", "%s: %s follows the rules of kube-proxy's nftables mode: NodePorts are served on loopback addresses, TCP only, if nodePortAddresses has localhost", was,
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
