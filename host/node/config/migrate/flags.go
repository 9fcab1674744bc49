package migrate

import (
	"encoding/csv"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/spelling"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// proxyFlag is a flag of kube-proxy: the field of KubeProxyConfiguration that it sets, and its type.
type proxyFlag struct {
	field string // "" for flags of commands, which configure nothing
	typ   string // text (also of durations), bool, number, list, pairs
}

func proxyFlags() map[string]proxyFlag {
	out := map[string]proxyFlag{}
	for typ, flags := range map[string]string{
		"text": `bind-address=bindAddress cluster-cidr=clusterCIDR config-sync-period=configSyncPeriod
			conntrack-tcp-timeout-close-wait=conntrack.tcpCloseWaitTimeout conntrack-tcp-timeout-established=conntrack.tcpEstablishedTimeout
			conntrack-udp-timeout=conntrack.udpTimeout conntrack-udp-timeout-stream=conntrack.udpStreamTimeout
			detect-local-mode=detectLocalMode healthz-bind-address=healthzBindAddress hostname-override=hostnameOverride
			iptables-min-sync-period=iptables.minSyncPeriod iptables-sync-period=iptables.syncPeriod
			ipvs-min-sync-period=ipvs.minSyncPeriod ipvs-scheduler=ipvs.scheduler ipvs-sync-period=ipvs.syncPeriod
			ipvs-tcp-timeout=ipvs.tcpTimeout ipvs-tcpfin-timeout=ipvs.tcpFinTimeout ipvs-udp-timeout=ipvs.udpTimeout
			kube-api-content-type=clientConnection.contentType kubeconfig=clientConnection.kubeconfig master=clientConnection.server
			log-flush-frequency=logging.flushFrequency logging-format=logging.format metrics-bind-address=metricsBindAddress
			pod-bridge-interface=detectLocal.bridgeInterface pod-interface-name-prefix=detectLocal.interfaceNamePrefix
			proxy-mode=mode proxy-port-range=portRange show-hidden-metrics-for-version=showHiddenMetricsForVersion
			service-node-port-range=nodePortRange vmodule=logging.vmodule config= write-config-to=
			log-json-info-buffer-size=logging.options.json.infoBufferSize log-text-info-buffer-size=logging.options.text.infoBufferSize
			log-backtrace-at= stderrthreshold= log-dir= log-file= log-file-max-size= healthz-port=healthzPort metrics-port=metricsPort
			conntrack-max= resource-container= udp-timeout= azure-container-registry-config= boot-id-file= google-json-key= machine-id-file=`,
		"bool": `bind-address-hard-fail=bindAddressHardFail cleanup= conntrack-tcp-be-liberal=conntrack.tcpBeLiberal init-only=
			iptables-localhost-nodeports=iptables.localhostNodePorts ipvs-strict-arp=ipvs.strictARP masquerade-all=iptables.masqueradeAll
			profiling=enableProfiling version= help= alsologtostderr= logtostderr= add-dir-header= skip-headers= skip-log-headers=
			one-output= cleanup-iptables= cleanup-ipvs= log-json-split-stream=logging.options.json.splitStream log-text-split-stream=logging.options.text.splitStream`,
		"number": `conntrack-max-per-core=conntrack.maxPerCore conntrack-min=conntrack.min iptables-masquerade-bit=iptables.masqueradeBit
			kube-api-burst=clientConnection.burst kube-api-qps=clientConnection.qps oom-score-adj=oomScoreAdj v=logging.verbosity`,
		"list":  "ipvs-exclude-cidrs=ipvs.excludeCIDRs nodeport-addresses=nodePortAddresses",
		"pairs": "feature-gates=featureGates",
	} {
		for f := range strings.FieldsSeq(flags) {
			name, field, _ := strings.Cut(f, "=")
			out[name] = proxyFlag{field, typ}
		}
	}
	return out
}

// applyFlags sets the fields of kube-proxy's flags. With a configuration file, kube-proxy ignores its flags but a few.
func (m *migration) applyFlags(words []string, hasFile bool) {
	all, former := proxyFlags(), formerFlags()
	set := map[string]bool{} // flags seen so far
	var ignored []string
	for i := 0; i < len(words); i++ {
		word := strings.TrimLeft(words[i], "-")
		name, value, hasValue := strings.Cut(word, "=")
		name = strings.ReplaceAll(name, "_", "-")
		f, ok := all[name]
		switch {
		case word == words[i]:
			m.errorf("%q is not a flag of kube-proxy", words[i])
			continue
		case !ok:
			m.errorf("--%s: unknown flag of kube-proxy%s", name, spelling.DidYouMean(name, slices.Collect(maps.Keys(all))))
			continue
		case !hasValue && f.typ == "bool":
			value = "true"
		case !hasValue && i+1 == len(words):
			m.errorf("--%s: missing value", name)
			continue
		case !hasValue:
			i++
			value = words[i]
		}
		reference := variable.FindString(value)
		switch {
		case name == "config" && !hasFile && value != "":
			m.errorf("--config: %s: kube-proxy reads its settings from this file, and ignores its flags: migrate the file, or the ConfigMap "+
				"that contains it (kubectl -n kube-system get configmap -o yaml)", value)
		case former[name] != "":
			m.note(Changed, "--"+name, "dropped: kube-proxy has not had it since Kubernetes %s", former[name])
		case f.field == "":
		case hasFile && f.field != "hostnameOverride" && f.field != "logging.verbosity" && f.field != "nodePortRange":
			ignored = append(ignored, "--"+name)
		case reference != "" && f.field == "hostnameOverride":
			m.unresolved = reference
		case reference != "":
			m.errorf("--%s: %s is not resolved: it is in the environment of kube-proxy; put its value in its place", name, reference)
		default:
			if err := setFlag(m.in, f, value, set[name]); err != nil {
				m.errorf("--%s: %v", name, err)
			}
			set[name] = true
		}
	}
	if len(ignored) > 0 {
		m.note(Changed, strings.Join(ignored, ", "), "dropped: kube-proxy ignores these flags beside a configuration file")
	}
	if hasFile {
		return
	}
	if v, ok := object(m.in, "iptables")["masqueradeAll"]; ok && m.in["mode"] == config.ModeNFTables { // --masquerade-all is of all modes
		delete(object(m.in, "iptables"), "masqueradeAll")
		m.in["nftables"] = map[string]any{"masqueradeAll": v}
	}
	m.listenFlags("healthzBindAddress", "healthzPort")
	m.listenFlags("metricsBindAddress", "metricsPort")
}

// listenFlags applies the flag of a server's port: 0, or an empty address, disables the server; others are of addresses without a
// port.
func (m *migration) listenFlags(address, port string) {
	n, hasPort := m.in[port].(string)
	delete(m.in, port)
	a, err := netip.ParseAddr(m.stringAt(address))
	switch {
	case hasPort && n == "0" || m.in[address] == "":
		delete(m.in, address)
		m.out[address] = ""
	case hasPort && err == nil:
		m.in[address] = net.JoinHostPort(a.String(), n)
	}
}

// setFlag sets the field of a flag. Lists and pairs of a flag that is given again are added.
func setFlag(tree map[string]any, f proxyFlag, value string, again bool) error {
	parts := strings.Split(f.field, ".")
	for _, p := range parts[:len(parts)-1] {
		sub, _ := tree[p].(map[string]any)
		if sub == nil {
			sub = map[string]any{}
			tree[p] = sub
		}
		tree = sub
	}
	last := parts[len(parts)-1]
	switch f.typ {
	case "bool":
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%q is not true or false", value)
		}
		tree[last] = on
	case "number":
		tree[last] = number(value)
	case "list":
		list, err := csvFields(value)
		if err != nil {
			return fmt.Errorf("%q is not a list of values with commas between them: %w", value, err)
		}
		if before, ok := tree[last].([]any); ok && again {
			list = append(before, list...)
		}
		tree[last] = list
	case "pairs":
		for pair := range strings.SplitSeq(value, ",") {
			k, on, _ := strings.Cut(pair, "=")
			if k = strings.TrimSpace(k); k == "" {
				continue
			}
			if err := setFlag(tree, proxyFlag{last + "." + k, "bool"}, strings.TrimSpace(on), again); err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
		}
	default:
		tree[last] = value
	}
	return nil
}

// csvFields returns the values of a flag that is a list: a line of CSV.
func csvFields(value string) ([]any, error) {
	list := []any{}
	if value == "" {
		return list, nil
	}
	fields, err := csv.NewReader(strings.NewReader(value)).Read()
	for _, s := range fields {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list, err
}
