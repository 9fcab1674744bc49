package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// NoteKind says what a Note is about. Notes are sorted by kind.
type NoteKind int

// Kinds of notes.
const (
	Behavior NoteKind = iota // the same settings behave differently in sluice
	Lost                     // a setting that had an effect, and has no equivalent
	Changed                  // a field is written in another way, or had no effect
	Omitted                  // a default value was omitted
)

// Note describes how a field of a KubeProxyConfiguration was changed or why it was dropped.
type Note struct {
	Kind       NoteKind
	Path, Text string
}

// String returns "path: text".
func (n Note) String() string { return n.Path + ": " + n.Text }

// Fields returns how many fields the note is about.
func (n Note) Fields() int { return 1 + strings.Count(n.Path, ", ") }

// Options configure KubeProxy.
type Options struct {
	For            string                   // ForHost or ForDaemonSet; "" means ForHost
	Flags          []string                 // of kube-proxy's command line
	Server         string                   // URL of the API server; "" means that of the input
	ReadKubeconfig func(file string) string // returns the server in a kubeconfig that the input names, or ""; may be nil
}

// kubeProxyVersion is the API version of the configuration that KubeProxy reads.
const kubeProxyVersion = "kubeproxy.config.k8s.io/v1alpha1"

// KubeProxy converts a KubeProxyConfiguration to the equivalent SluiceConfiguration. The input can also be a ConfigMap that
// contains it, a file of kubeadm, a Pod or DaemonSet of kube-proxy, or kube-proxy's command line. The notes list every field that
// was changed or dropped, and why. Unknown fields and values that kube-proxy rejects are errors; all are returned together.
func KubeProxy(b []byte, o Options) (text []byte, notes []Note, err error) {
	in, err := readKubeProxy(b, o.Flags)
	if err != nil {
		return nil, nil, err
	}
	m, err := newMigration(in)
	if err != nil {
		return nil, nil, err
	}
	if err := m.client(in, o); err != nil {
		return nil, nil, err
	}
	m.mode()
	m.sloppy()
	m.addresses()
	m.target(o)
	m.detection()
	m.ipvs()
	m.gates()
	m.moveKept()
	m.dropRest()
	full, err := m.parse()
	if err = errors.Join(append(m.errs, err)...); err != nil {
		return nil, nil, err
	}
	for _, w := range full.RefusedRanges() {
		path, text, _ := strings.Cut(w, ": ")
		m.note(Behavior, path, "%s", text)
	}
	m.omitDefaults(full)
	slices.SortStableFunc(m.notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Path, b.Path))
	})
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
	case m.backend == config.ModeNFTables:
	case m.backend == "", m.backend == "iptables", m.backend == config.ModeIPVS:
		was := m.backend
		if m.backend == "" {
			m.backend, was = "iptables", "empty, which means iptables before Kubernetes 1.40, and nftables from then on, where an empty nodePortAddresses is the primary address, not all, and NodePorts are not at 127.0.0.1"
		}
		m.behavior(was)
		if list, isList := m.in["nodePortAddresses"].([]any); len(list) == 0 && (isList || m.in["nodePortAddresses"] == nil) {
			m.in["nodePortAddresses"] = []any{"0.0.0.0/0", "::/0"}
			m.note(Changed, "nodePortAddresses", "empty, which in mode %s means all addresses of the node: set explicitly", m.backend)
		}
	default:
		m.put("mode", v)
	}
}

// behavior reports what sluice does differently with the same settings.
func (m *migration) behavior(was string) {
	if m.backend == config.ModeIPVS {
		m.note(Behavior, "mode", "%s: sluice's mode ipvs follows the rules of kube-proxy's nftables mode: NodePorts are served on loopback addresses, TCP only, if nodePortAddresses has localhost", was)
		return
	}
	m.note(Behavior, "mode", "%s: sluice follows the rules of kube-proxy's nftables mode: NodePorts are served on loopback addresses, TCP only, if nodePortAddresses has localhost", was)
	m.note(Behavior, "host firewalls", "mode iptables accepts traffic to NodePorts, and forwarded traffic of Services, before rules of the host's "+
		"firewall could drop it; sluice does not: in a host's firewall, allow the NodePort range and the Pods' addresses")
	if m.in["conntrack"] == nil || object(m.in, "conntrack")["tcpBeLiberal"] != true {
		m.note(Behavior, "conntrack.tcpBeLiberal", "mode iptables drops packets that conntrack calls invalid, so that long connections are not reset; sluice does not: "+
			"set it to true if kube-proxy's metric iptables_ct_state_invalid_dropped_packets_total grows (kernels before 6.1)")
	}
}

// sloppy writes addresses without leading zeros, which kube-proxy ignores.
func (m *migration) sloppy() {
	cidr := func(s string) string {
		if _, err := netip.ParsePrefix(s); err != nil {
			if r, err := ipaddr.ParsePrefix(s); err == nil {
				return r.String()
			}
		}
		return s
	}
	if s := m.stringAt("clusterCIDR"); s != "" {
		parts := strings.Split(s, ",")
		for i, p := range parts {
			parts[i] = cidr(strings.TrimSpace(p))
		}
		m.in["clusterCIDR"] = strings.Join(parts, ",")
	}
	for _, path := range []string{"nodePortAddresses", "ipvs.excludeCIDRs"} {
		_, name, in := cutPath(path, m.in)
		list, _ := in[name].([]any)
		for i, e := range list {
			if s, ok := e.(string); ok {
				list[i] = cidr(s)
			}
		}
	}
	for _, path := range []string{"bindAddress", "healthzBindAddress", "metricsBindAddress"} {
		host, port, err := net.SplitHostPort(m.stringAt(path))
		if err != nil {
			host, port = m.stringAt(path), ""
		}
		if a, err := ipaddr.Parse(host); err == nil && host != a.String() {
			if m.in[path] = a.String(); port != "" {
				m.in[path] = net.JoinHostPort(a.String(), port)
			}
		}
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
		if m.out[a.path] != nil { // disabled by a flag
			continue
		}
		s := m.stringAt(a.path)
		if ip, err := netip.ParseAddr(s); err == nil {
			m.in[a.path] = net.JoinHostPort(ip.String(), a.port)
			m.note(Changed, a.path, "%s: kube-proxy uses port %s: set explicitly", s, a.port)
		} else if m.in[a.path] == nil || m.in[a.path] == "" {
			delete(m.in, a.path)
			if bind.Is6() && !bind.Is4In6() {
				m.in[a.path] = a.ipv6Default
				m.note(Changed, a.path, "empty, which with an IPv6 bindAddress means %s: set explicitly", a.ipv6Default)
			}
		}
	}
}

// detection drops the fields that detectLocalMode does not use.
func (m *migration) detection() {
	mode := m.stringAt("detectLocalMode")
	if mode == "" {
		mode = config.ClusterCIDR
	}
	for _, f := range []struct{ path, of string }{
		{"clusterCIDR", config.ClusterCIDR},
		{"detectLocal.bridgeInterface", config.BridgeInterface},
		{"detectLocal.interfaceNamePrefix", config.InterfaceNamePrefix},
	} {
		if s := m.stringAt(f.path); s != "" && mode != f.of {
			m.take(f.path)
			m.note(Changed, f.path, "dropped: only detectLocalMode %s uses it", f.of)
			m.keepReserved(s)
		}
	}
}

// gates converts the feature gates that are settings of sluice.
func (m *migration) gates() {
	const gate = "featureGates.AllowServiceExternalIPs"
	switch on := m.take(gate); on {
	case nil:
	case true, false:
		value := map[any]string{true: "Allow", false: "Ignore"}[on]
		m.put("externalIPs", value)
		m.note(Changed, gate, "%v: externalIPs is %s", on, value)
	default:
		m.errorf("%s: %s is not true or false", gate, strictyaml.Describe(on))
	}
}

// keepReserved accepts endpoints in the reserved blocks that a clusterCIDR without other effect names.
func (m *migration) keepReserved(clusterCIDR string) {
	for s := range strings.SplitSeq(clusterCIDR, ",") {
		if r, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil && len(eligibility.ReservedInUse([]netip.Prefix{r})) > 0 {
			list, _ := m.out["endpointCIDRs"].([]any)
			m.put("endpointCIDRs", append(list, r.String()))
			m.note(Changed, "endpointCIDRs", "%s: so that Pods in reserved addresses are accepted as endpoints", r)
		}
	}
}

// moveKept copies the fields that exist in a SluiceConfiguration.
func (m *migration) moveKept() {
	masquerade, sync := "iptables", m.backend
	if m.backend == config.ModeNFTables {
		masquerade = config.ModeNFTables
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
