package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/spelling"
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
			log_dir= log_file= log_file_max_size= log_backtrace_at= stderrthreshold= log-dir= log-file= log-file-max-size=`,
		"bool": `bind-address-hard-fail=bindAddressHardFail cleanup= conntrack-tcp-be-liberal=conntrack.tcpBeLiberal init-only=
			iptables-localhost-nodeports=iptables.localhostNodePorts ipvs-strict-arp=ipvs.strictARP masquerade-all=iptables.masqueradeAll
			profiling=enableProfiling version= help= alsologtostderr= logtostderr= add_dir_header= skip_headers= skip_log_headers=
			one_output= log-json-split-stream=logging.options.json.splitStream log-text-split-stream=logging.options.text.splitStream`,
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
func applyFlags(tree map[string]any, words []string, hasFile bool) (ignored []string, err error) {
	all := proxyFlags()
	var errs []error
	for i := 0; i < len(words); i++ {
		word := strings.TrimLeft(words[i], "-")
		name, value, hasValue := strings.Cut(word, "=")
		f, ok := all[name]
		switch {
		case word == words[i]:
			errs = append(errs, fmt.Errorf("%q is not a flag of kube-proxy", words[i]))
			continue
		case !ok:
			var names []string
			for n := range all {
				names = append(names, n)
			}
			slices.Sort(names)
			errs = append(errs, fmt.Errorf("--%s: unknown flag of kube-proxy%s", name, spelling.DidYouMean(name, names)))
			continue
		case !hasValue && f.typ == "bool":
			value = "true"
		case !hasValue && i+1 == len(words):
			errs = append(errs, fmt.Errorf("--%s: missing value", name))
			continue
		case !hasValue:
			i++
			value = words[i]
		}
		switch {
		case name == "config" && !hasFile:
			errs = append(errs, fmt.Errorf("--config: %s: kube-proxy reads its settings from this file, and ignores its flags: migrate the file, or the ConfigMap "+
				"that contains it (kubectl -n kube-system get configmap -o yaml)", value))
		case f.field == "":
		case hasFile && f.field != "hostnameOverride" && f.field != "logging.verbosity" && f.field != "nodePortRange":
			ignored = append(ignored, "--"+name)
		default:
			setFlag(tree, f, value)
		}
	}
	if v, ok := object(tree, "iptables")["masqueradeAll"]; ok && tree["mode"] == ModeNFTables && !hasFile { // --masquerade-all is of all modes
		delete(object(tree, "iptables"), "masqueradeAll")
		tree["nftables"] = map[string]any{"masqueradeAll": v}
	}
	return ignored, errors.Join(errs...)
}

func setFlag(tree map[string]any, f proxyFlag, value string) {
	var v any = value
	switch f.typ {
	case "bool":
		if value == "true" || value == "false" {
			v = value == "true"
		}
	case "number":
		v = number(value)
	case "list":
		list := []any{}
		for s := range strings.SplitSeq(value, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
		v = list
	case "pairs":
		for pair := range strings.SplitSeq(value, ",") {
			if k, on, ok := strings.Cut(pair, "="); ok {
				setFlag(tree, proxyFlag{f.field + "." + strings.TrimSpace(k), "bool"}, on)
			}
		}
		return
	}
	parts := strings.Split(f.field, ".")
	for _, p := range parts[:len(parts)-1] {
		sub, _ := tree[p].(map[string]any)
		if sub == nil {
			sub = map[string]any{}
			tree[p] = sub
		}
		tree = sub
	}
	tree[parts[len(parts)-1]] = v
}
