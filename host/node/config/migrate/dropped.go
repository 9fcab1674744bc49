package migrate

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// keptFields returns the fields with the same path in both configurations.
func keptFields() []string {
	return []string{
		"bindAddress", "bindAddressHardFail", "clientConnection.kubeconfig", "clusterCIDR", "conntrack.maxPerCore", "conntrack.min", "conntrack.tcpBeLiberal",
		"conntrack.tcpCloseWaitTimeout", "conntrack.tcpEstablishedTimeout", "conntrack.udpStreamTimeout",
		"conntrack.udpTimeout", "detectLocal.bridgeInterface", "detectLocal.interfaceNamePrefix", "detectLocalMode",
		"enableProfiling", "healthzBindAddress", "hostnameOverride", "logging.format", "logging.verbosity",
		"metricsBindAddress", "noMasqueradeCIDRs", "nodePortAddresses", "nodePortRange", "oomScoreAdj",
	}
}

// droppedFields returns why fields do not exist in a SluiceConfiguration, by path or by path prefix with a trailing dot, and
// the defaults of kube-proxy that differ from the zero value, so that a dump of all defaults is reported in a few lines.
func droppedFields() map[string]struct {
	why      string
	defaults []string
} {
	type d = struct {
		why      string
		defaults []string
	}
	return map[string]d{
		"clientConnection.":           {"sluice always uses protobuf watches; its request rate is not configurable", []string{"application/vnd.kubernetes.protobuf", "5", "10"}},
		"configSyncPeriod":            {"sluice watches and does not resync periodically", []string{"15m0s"}},
		"featureGates.":               {"sluice has no feature gates; generally available features are enabled", nil},
		"iptables.localhostNodePorts": {"NodePorts are served on loopback addresses, TCP only, if nodePortAddresses has localhost", []string{"true"}},
		"ipvs.excludeCIDRs":           {"not used in this mode", nil},
		"ipvs.scheduler":              {"mode nftables selects endpoints at random, by the weights of policies", nil},
		"ipvs.strictARP":              {"in mode nftables Service addresses are not assigned to an interface", nil},
		"ipvs.tcpFinTimeout":          {"an IPVS timeout; mode nftables uses conntrack timeouts", nil},
		"ipvs.tcpTimeout":             {"an IPVS timeout; mode nftables uses conntrack.tcpEstablishedTimeout", nil},
		"ipvs.udpTimeout":             {"an IPVS timeout; mode nftables uses conntrack.udpTimeout and conntrack.udpStreamTimeout", nil},
		"logging.flushFrequency":      {"sluice does not buffer its log", []string{"5s", "5000000000"}},
		"logging.options.":            {"sluice does not buffer its log", nil},
		"logging.vmodule":             {"sluice has one verbosity for all files", nil},
		"portRange":                   {"no effect in kube-proxy since the removal of its userspace mode", nil},
		"showHiddenMetricsForVersion": {"sluice hides no metrics", nil},
		"windowsRunAsService":         {"sluice runs on Linux", nil},
		"winkernel.":                  {"sluice runs on Linux", nil},
		"iptables.":                   {"not used in this mode", []string{"14", "1s", "30s"}},
		"ipvs.":                       {"not used in this mode", []string{"30s"}},
		"nftables.":                   {"not used in this mode", []string{"14", "1s", "30s"}},
	}
}

// dropRest reports the remaining fields: those with a non-default value one by one, the others grouped by reason.
func (m *migration) dropRest() {
	all, known := droppedFields(), knownFields()
	find := func(path string) string {
		best := ""
		for p := range all {
			if (p == path || strings.HasSuffix(p, ".") && strings.HasPrefix(path, p) && (p == "featureGates." || slices.Contains(known, path))) && len(p) > len(best) {
				best = p
			}
		}
		return best
	}
	defaults := map[string][]string{} // fields with default values, by reason
	m.leaves(m.in, "", func(path string, v any) {
		rule := find(path)
		d := all[rule]
		switch {
		case rule == "" && (all[path+"."].why != "" || slices.ContainsFunc(known, func(f string) bool { return strings.HasPrefix(f, path+".") })):
			m.errorf("%s: %s is not an object", path, strictyaml.Describe(v))
		case rule == "":
			m.errorf("%s: unknown field of kube-proxy's configuration%s", path, spelling.DidYouMean(path, known))
		case isDefault(v, d.defaults):
			defaults[d.why] = append(defaults[d.why], path)
		default:
			m.note(kindOf(rule), path, "dropped: %s", d.why)
		}
	})
	for _, why := range slices.Sorted(maps.Keys(defaults)) {
		m.note(Omitted, strings.Join(defaults[why], ", "), "dropped (default value): %s", why)
	}
	clear(m.in)
}

// kindOf returns Changed for fields that had no effect, otherwise Lost.
func kindOf(rule string) NoteKind {
	if strings.HasPrefix(rule, "ipvs.") || rule == "iptables." || rule == "nftables." || rule == "portRange" || strings.HasPrefix(rule, "win") {
		return Changed
	}
	return Lost
}

// leaves calls f for the fields of a tree that are not objects, sorted.
func (m *migration) leaves(tree map[string]any, path string, f func(path string, v any)) {
	for _, k := range slices.Sorted(maps.Keys(tree)) {
		if sub, ok := tree[k].(map[string]any); ok {
			m.leaves(sub, strictyaml.JoinPath(path, k), f)
		} else {
			f(strictyaml.JoinPath(path, k), tree[k])
		}
	}
}

// isDefault reports whether a value is the zero value or one of the defaults.
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

// knownFields returns the fields of a KubeProxyConfiguration.
func knownFields() []string {
	out := append(keptFields(), "mode")
	for p := range droppedFields() {
		if !strings.HasSuffix(p, ".") {
			out = append(out, p)
		}
	}
	for section, names := range map[string]string{
		"iptables.": "masqueradeAll masqueradeBit minSyncPeriod syncPeriod", "nftables.": "masqueradeAll masqueradeBit minSyncPeriod syncPeriod", "ipvs.": "minSyncPeriod syncPeriod",
		"clientConnection.": "acceptContentTypes burst contentType qps", "winkernel.": "enableDSR forwardHealthCheckVip networkName rootHnsEndpointName sourceVip",
		"logging.options.": "json.infoBufferSize json.splitStream text.infoBufferSize text.splitStream",
	} {
		for name := range strings.FieldsSeq(names) {
			out = append(out, section+name)
		}
	}
	return out
}
