package migrate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/node/config"
)

const head = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

const kubeProxyHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// kubeProxyDefaults is what kube-proxy --write-config-to writes.
const kubeProxyDefaults = kubeProxyHead + `
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 10, contentType: application/vnd.kubernetes.protobuf, kubeconfig: "", qps: 5}
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables: {localhostNodePorts: true, masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 1s, syncPeriod: 30s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 5s, format: text, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: 127.0.0.1:10249
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: -999
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

func TestMigrateKubeProxyDefaults(t *testing.T) {
	text, notes, err := KubeProxy([]byte(kubeProxyDefaults), Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The mode is iptables: defaults that differ from mode nftables are set explicitly.
	const want = "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nminSyncPeriod: 1s\nnodePortAddresses:\n- 0.0.0.0/0\n- ::/0\n"
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	all := notesText(notes)
	for _, field := range []string{ // reported although they have their default
		"clientConnection.kubeconfig", "configSyncPeriod", "iptables.localhostNodePorts", "ipvs.scheduler", "logging.flushFrequency",
		"mode", "portRange", "showHiddenMetricsForVersion", "winkernel.enableDSR", "nftables.masqueradeBit", "conntrack.min", "oomScoreAdj",
	} {
		if !strings.Contains(all, field) {
			t.Errorf("not reported: %s", field)
		}
	}
	if len(notes) > 20 {
		t.Errorf("%d lines about defaults:\n%s", len(notes), all)
	}
}

func TestMigrateDefaultsInModeNFTablesIsEmpty(t *testing.T) {
	text, _, err := KubeProxy([]byte(strings.Replace(kubeProxyDefaults, `mode: ""`, "mode: nftables", 1)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != head {
		t.Errorf("got %s", text)
	}
}

func notesText(notes []Note) string {
	var b strings.Builder
	for _, n := range notes {
		b.WriteString(n.String() + "\n")
	}
	return b.String()
}

func TestMigrateEachField(t *testing.T) {
	const nft, ipt = "mode: nftables\n", "nodePortAddresses: [10.0.0.0/8]\n"
	for name, c := range map[string]struct {
		in, out string // without apiVersion and kind; out sorted by field
		notes   []string
	}{
		"nothing":             {nft, "", nil},
		"hostnameOverride":    {nft + "hostnameOverride: ' Node-A '", "hostnameOverride: node-a", nil},
		"bindAddress":         {nft + "bindAddress: 192.168.0.1", "bindAddress: 192.168.0.1", nil},
		"bindAddressHardFail": {nft + "bindAddressHardFail: true", "bindAddressHardFail: true", nil},
		"bindAddress of IPv6": {nft + "bindAddress: '::'", "healthzBindAddress: '[::]:10256'\nmetricsBindAddress: '[::1]:10249'",
			[]string{"healthzBindAddress: empty, which", "metricsBindAddress: empty, which", "bindAddress: omitted"}},
		"addresses without a port": {nft + "metricsBindAddress: 0.0.0.0\nhealthzBindAddress: '::1'",
			"healthzBindAddress: '[::1]:10256'\nmetricsBindAddress: 0.0.0.0:10249",
			[]string{"healthzBindAddress: ::1: kube-proxy uses port 10256", "metricsBindAddress: 0.0.0.0: kube-proxy uses port 10249"}},
		"clusterCIDR":     {nft + "clusterCIDR: '10.244.0.0/16,fd00::/48'", "clusterCIDR: 10.244.0.0/16,fd00::/48", nil},
		"detectLocalMode": {nft + "detectLocalMode: NodeCIDR", "detectLocalMode: NodeCIDR", nil},
		"detectLocal": {nft + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}\nclusterCIDR: 10.0.0.0/8",
			"detectLocal:\n  bridgeInterface: cni0\ndetectLocalMode: BridgeInterface",
			[]string{"clusterCIDR: dropped: only detectLocalMode ClusterCIDR", "detectLocal.interfaceNamePrefix: dropped: only detectLocalMode InterfaceNamePrefix"}},
		"conntrack": {nft + "conntrack: {maxPerCore: 0, min: 5, tcpBeLiberal: true, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 1h0m0s, udpTimeout: 7s, udpStreamTimeout: 0s}",
			"conntrack:\n  maxPerCore: 0\n  min: 5\n  tcpBeLiberal: true\n  tcpCloseWaitTimeout: 0s\n  tcpEstablishedTimeout: 1h0m0s\n  udpTimeout: 7s",
			[]string{"conntrack.udpStreamTimeout: omitted"}},
		"oomScoreAdj":     {nft + "oomScoreAdj: 0", "oomScoreAdj: 0", nil},
		"enableProfiling": {nft + "enableProfiling: true", "enableProfiling: true", nil},
		"logging": {nft + "logging: {format: json, verbosity: 4, flushFrequency: 1s, vmodule: [{filePattern: x, verbosity: 1}]}",
			"logging:\n  format: json\n  verbosity: 4", []string{"logging.flushFrequency: dropped: ", "logging.vmodule: dropped: "}},
		"nodePortAddresses": {nft + "nodePortAddresses: [10.0.0.0/8]", "nodePortAddresses:\n- 10.0.0.0/8", nil},
		"primary":           {"nodePortAddresses: [primary]", "", []string{"conntrack.tcpBeLiberal: mode iptables", "host firewalls: mode iptables", "mode: empty", "nodePortAddresses: omitted"}},
		"mode iptables":     {"mode: iptables", "nodePortAddresses:\n- 0.0.0.0/0\n- ::/0", []string{"mode: iptables: sluice follows", "nodePortAddresses: empty"}},
		"noMasqueradeCIDRs": {nft + "noMasqueradeCIDRs: [10.9.0.0/16]", "noMasqueradeCIDRs:\n- 10.9.0.0/16", nil},
		"nodePortRange":     {nft + "nodePortRange: 30000-35000", "nodePortRange: 30000-35000", nil},
		"the section of mode nftables": {nft + "nftables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 2s, syncPeriod: 1m0s}\niptables: {masqueradeAll: true, syncPeriod: 5s}",
			"masqueradeAll: true\nmasqueradeBit: 3\nminSyncPeriod: 2s\nsyncPeriod: 1m0s",
			[]string{"iptables.masqueradeAll: dropped: not used in this mode", "iptables.syncPeriod: dropped: not used in this mode"}},
		"the section of mode iptables": {ipt + "iptables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 2s, syncPeriod: 1m0s, localhostNodePorts: false}\nnftables: {masqueradeBit: 4}",
			"masqueradeAll: true\nmasqueradeBit: 3\nminSyncPeriod: 2s\nnodePortAddresses:\n- 10.0.0.0/8\nsyncPeriod: 1m0s",
			[]string{"mode: empty", "nftables.masqueradeBit: dropped: not used in this mode", "iptables.localhostNodePorts: dropped (default value)"}},
		"the sections of mode ipvs": {ipt + "mode: ipvs\niptables: {masqueradeAll: true, syncPeriod: 5s}\nipvs: {minSyncPeriod: 2s, syncPeriod: 1m0s, scheduler: wrr, strictARP: true, tcpTimeout: 5s, tcpFinTimeout: 5s, udpTimeout: 5s, excludeCIDRs: [10.0.0.0/8]}",
			"masqueradeAll: true\nminSyncPeriod: 2s\nmode: ipvs\nipvs:\n  excludeCIDRs:\n  - 10.0.0.0/8\n  strictARP: true\n  tcpFinTimeout: 5s\n  tcpTimeout: 5s\n  udpTimeout: 5s\nnodePortAddresses:\n- 10.0.0.0/8\nsyncPeriod: 1m0s",
			[]string{"mode: ipvs", "iptables.syncPeriod: dropped", "ipvs.scheduler: omitted"}},
		"a scheduler without weights": {ipt + "mode: ipvs\nipvs: {scheduler: lc}", "mode: ipvs\nipvs:\n  scheduler: wlc\nnodePortAddresses:\n- 10.0.0.0/8",
			[]string{"mode: ipvs", "ipvs.scheduler: lc: replaced with wlc"}},
		"the section of another mode": {nft + "ipvs: {scheduler: lc, strictARP: true, tcpTimeout: 5s, excludeCIDRs: [10.0.0.0/8]}", "",
			[]string{"ipvs.scheduler: dropped: ", "ipvs.strictARP: dropped: ", "ipvs.tcpTimeout: dropped: ", "ipvs.excludeCIDRs: dropped: "}},
		"fields without equivalent": {nft + "featureGates: {X: true, Z: false}\nportRange: 1-2\nconfigSyncPeriod: 1m\nclientConnection: {kubeconfig: /k, qps: 7.5}\nwinkernel: {sourceVip: 10.0.0.1}\nwindowsRunAsService: true\nshowHiddenMetricsForVersion: '1.35'",
			"clientConnection:\n  kubeconfig: /k", []string{"featureGates.X: dropped: ", "featureGates.Z: dropped (default value)", "portRange: dropped: ", "configSyncPeriod: dropped: ",
				"clientConnection.kubeconfig: /k: the file must exist", "clientConnection.qps: dropped: ", "winkernel.sourceVip: dropped: ", "windowsRunAsService: dropped: ", "showHiddenMetricsForVersion: dropped: "}},
	} {
		t.Run(name, func(t *testing.T) {
			text, notes, err := KubeProxy([]byte(kubeProxyHead+c.in+"\n"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			want, err := config.Parse([]byte(head+c.out+"\n"), "")
			if err != nil {
				t.Fatal(err)
			}
			got, err := config.Parse(text, "")
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if !got.Equal(want) {
				t.Errorf("got %s", text)
			}
			for line := range strings.SplitSeq(c.out, "\n") { // the result contains no other fields
				if line != "" && !strings.Contains(string(text), line) {
					t.Errorf("got %s\nwithout %q", text, line)
				}
			}
			if a, b := strings.Count(string(text), "\n"), strings.Count(head+strings.TrimSuffix(c.out+"\n", "\n"), "\n"); c.out == "" && a != b {
				t.Errorf("got %s", text)
			}
			lines := notesText(notes)
			for _, n := range c.notes {
				if !strings.Contains("\n"+lines, "\n"+n) {
					t.Errorf("not reported: %s\nin\n%s", n, lines)
				}
			}
			if len(notes) != len(c.notes) && !strings.Contains(name, "mode") {
				t.Errorf("%d lines:\n%s", len(notes), lines)
			}
		})
	}
}

func TestMigrateRejectsInvalidConfigurations(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"a ConfigMap of something else": {"apiVersion: v1\nkind: ConfigMap\ndata: {config.conf: x}\n", []string{`kind: "ConfigMap": must be KubeProxyConfiguration`}},
		"an error in a ConfigMap":       {"apiVersion: v1\nkind: ConfigMap\ndata: {config.conf: 'kind: [' }\n", []string{"data.config.conf: line 1"}},
		"unknown fields": {kubeProxyHead + "mdoe: ipvs\noomScoreAjd: 1\nconntrack: {mxa: 1, mni: 2}\n",
			[]string{"mdoe: unknown field of kube-proxy's configuration (did you mean \"mode\"?)", "oomScoreAjd: unknown field of kube-proxy's configuration (did you mean \"oomScoreAdj\"?)",
				"conntrack.mxa: unknown field", "conntrack.mni: unknown field"}},
		"an unknown flag":   {"kube-proxy --cluster-cdir=10.0.0.0/8 --v", []string{`--cluster-cdir: unknown flag of kube-proxy (did you mean "cluster-cidr"?)`, "--v: missing value"}},
		"a value of a flag": {"kube-proxy --oom-score-adj=much --cluster-cidr=x", []string{"oomScoreAdj: \"much\" is not", `clusterCIDR: "x"`}},
		"another kind":      {"apiVersion: v1\nkind: Service\n", []string{`kind: "Service": must be KubeProxyConfiguration`}},
		"nothing":           {"# nothing\n", []string{"0 documents"}},
		"two documents":     {kubeProxyHead + "---\n" + kubeProxyHead, []string{"2 documents"}},
		"a list":            {"[]\n", []string{"not an object"}},
		"invalid values": {kubeProxyHead + "mode: kernelspace\nclusterCIDR: x\nnodePortAddresses: primary\nconntrack: 5\nipvs: {}\nlogging: {format: yaml}\n",
			[]string{`mode: "kernelspace" is not a mode of kube-proxy`, `clusterCIDR: "x"`, `nodePortAddresses: "primary" is not a list`, "conntrack: 5 is not an object", "logging.format"}},
		"invalid moved values": {kubeProxyHead + "iptables: {masqueradeBit: 40, masqueradeAll: 1, syncPeriod: 5}\n", []string{"iptables.masqueradeBit: 40", "iptables.masqueradeAll: 1 is not", "iptables.syncPeriod: 5 is not a string"}},
		"mode not a string":    {kubeProxyHead + "mode: 5\n", []string{"mode: 5"}},
		"a missing bridge":     {kubeProxyHead + "detectLocalMode: BridgeInterface\n", []string{"detectLocal.bridgeInterface: required"}},
		"min above sync":       {kubeProxyHead + "mode: nftables\nnftables: {minSyncPeriod: 40s}\n", []string{"nftables.minSyncPeriod: 40s is greater"}},
		"a timeout below 1s":   {kubeProxyHead + "conntrack: {udpTimeout: 10ms}\n", []string{"conntrack.udpTimeout: 10ms is not a whole number of seconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			text, _, err := KubeProxy([]byte(c.in), Options{})
			if err == nil {
				t.Fatalf("accepted:\n%s", text)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in\n%v", w, err)
				}
			}
		})
	}
}

// Installers write every field, most of them null or 0, which kube-proxy treats as the default.
func TestMigrateInstallerConfiguration(t *testing.T) {
	text, notes, err := KubeProxy([]byte(kubeProxyHead+`
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: nftables
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(text), "apiVersion: sluice.dev/v1alpha1\nclientConnection:\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\nclusterCIDR: 10.244.0.0/16\nkind: SluiceConfiguration\n"; got != want {
		t.Errorf("got %s", got)
	}
	all := notesText(notes)
	if !strings.Contains(all, "clientConnection.kubeconfig: /var/lib/kube-proxy/kubeconfig.conf: the file must exist") || !strings.Contains(all, "nftables.syncPeriod") {
		t.Errorf("reported:\n%s", all)
	}
}

// FuzzMigrate checks that KubeProxy does not panic and returns a valid configuration.
func FuzzMigrate(f *testing.F) {
	f.Add([]byte(kubeProxyDefaults))
	f.Add([]byte(kubeProxyHead + "mode: ipvs\nbindAddress: '::'\nipvs: {scheduler: 1}\nwinkernel: []\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		text, _, err := KubeProxy(in, Options{})
		if err != nil {
			return
		}
		if _, err := config.Parse(text, ""); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
	})
}
