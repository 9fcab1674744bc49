package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// keptFields are those with the same place in both configurations.
func keptFields() []string {
	return []string{
		"bindAddress", "bindAddressHardFail", "clientConnection.kubeconfig", "clusterCIDR", "conntrack.maxPerCore", "conntrack.min", "conntrack.tcpBeLiberal",
		"conntrack.tcpCloseWaitTimeout", "conntrack.tcpEstablishedTimeout", "conntrack.udpStreamTimeout",
		"conntrack.udpTimeout", "detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "detectLocalMode",
		"enableProfiling", "healthzBindAddress", "hostnameOverride", "logging.format", "logging.verbosity",
		"metricsBindAddress", "nodePortAddresses", "oomScoreAdj",
	}
}

// droppedFields says why fields have no place in a SluiceConfiguration: by path, or by the start of one and a dot. For each
// leaf comes what kube-proxy has by default, next to nothing at all, so that a dump of all defaults is told in a few
// lines.
func droppedFields() map[string]struct {
	why      string
	defaults []string
} {
	type d = struct {
		why      string
		defaults []string
	}
	return map[string]d{
		"clientConnection.":           {"sluice watches, always in protobuf, and has no limit to its requests that could be set", []string{"application/vnd.kubernetes.protobuf", "5", "10"}},
		"configSyncPeriod":            {"sluice watches, and reads nothing again by the clock", []string{"15m0s"}},
		"featureGates.":               {"sluice has no feature gates: what is generally available is on", nil},
		"iptables.localhostNodePorts": {"nftables never answers NodePorts on loopback addresses", []string{"true"}},
		"ipvs.excludeCIDRs":           {"not of the mode in force", nil},
		"ipvs.scheduler":              {"nftables picks at random, by weight; weights come from policies", nil},
		"ipvs.strictARP":              {"in mode nftables no address of a Service is on a link", nil},
		"ipvs.tcpFinTimeout":          {"IPVS has time-outs of its own; nftables has those of conntrack", nil},
		"ipvs.tcpTimeout":             {"IPVS has time-outs of its own; nftables has conntrack.tcpEstablishedTimeout", nil},
		"ipvs.udpTimeout":             {"IPVS has time-outs of its own; nftables has conntrack.udpTimeout and conntrack.udpStreamTimeout", nil},
		"logging.flushFrequency":      {"sluice's log is not buffered", []string{"5s", "5000000000"}},
		"logging.options.":            {"sluice's log is not buffered", nil},
		"logging.vmodule":             {"sluice has one verbosity for all", nil},
		"portRange":                   {"it has had no effect in kube-proxy since its userspace mode went", nil},
		"showHiddenMetricsForVersion": {"sluice hides no metrics", nil},
		"windowsRunAsService":         {"sluice runs on Linux", nil},
		"winkernel.":                  {"sluice runs on Linux", nil},
		"iptables.":                   {"not of the mode in force", []string{"14", "1s", "30s"}},
		"ipvs.":                       {"not of the mode in force", []string{"30s"}},
		"nftables.":                   {"not of the mode in force", []string{"14", "1s", "30s"}},
	}
}

// dropRest notes what is left: fields with a value of their own one by one, those with a default by section.
func (m *migration) dropRest() {
	all := droppedFields()
	find := func(path string) string {
		best := ""
		for p := range all {
			if (p == path || strings.HasSuffix(p, ".") && strings.HasPrefix(path, p)) && len(p) > len(best) {
				best = p
			}
		}
		return best
	}
	quiet := map[string][]string{} // fields with defaults, by why
	m.leaves(m.in, "", func(path string, v any) {
		rule := find(path)
		d := all[rule]
		switch {
		case rule == "" && slices.ContainsFunc(knownFields(), func(f string) bool { return strings.HasPrefix(f, path+".") }):
			m.errs = append(m.errs, fmt.Errorf("%s: %s is not an object", path, strictyaml.Describe(v)))
		case rule == "":
			m.note(path, "dropped: kube-proxy has no such field%s", strictyaml.DidYouMean(path, knownFields()))
		case isDefault(v, d.defaults):
			quiet[d.why] = append(quiet[d.why], path)
		default:
			m.note(path, "dropped: %s", d.why)
		}
	})
	for _, why := range slices.Sorted(maps.Keys(quiet)) {
		m.note(strings.Join(quiet[why], ", "), "dropped, a default: %s", why)
	}
	clear(m.in)
}

// leaves goes through the fields of a tree that are no objects, sorted.
func (m *migration) leaves(tree map[string]any, path string, f func(path string, v any)) {
	for _, k := range slices.Sorted(maps.Keys(tree)) {
		if sub, ok := tree[k].(map[string]any); ok {
			m.leaves(sub, strictyaml.JoinPath(path, k), f)
		} else {
			f(strictyaml.JoinPath(path, k), tree[k])
		}
	}
}

// isDefault tells whether a value says nothing, or one of the defaults.
func isDefault(v any, defaults []string) bool {
	switch v := v.(type) {
	case bool:
		return !v || slices.Contains(defaults, "true")
	case string:
		return v == "" || v == "0" || v == "0s" || slices.Contains(defaults, v)
	case json.Number:
		return v == "0" || slices.Contains(defaults, string(v))
	case []any:
		return len(v) == 0
	}
	return false
}

// knownFields are the fields of a KubeProxyConfiguration, for finding what was meant.
func knownFields() []string {
	out := keptFields()
	for p := range droppedFields() {
		out = append(out, strings.TrimSuffix(p, "."))
	}
	for _, section := range []string{"iptables.", "ipvs.", "nftables."} {
		for _, f := range []string{"minSyncPeriod", "syncPeriod", "masqueradeAll", "masqueradeBit"} {
			out = append(out, section+f)
		}
	}
	return append(out, "mode")
}
