package migrate

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// known is a line of testdata/kube-proxy-fields.txt or testdata/kube-proxy-flags.txt.
type known struct{ name, since, until, value string }

func readKnown(t *testing.T, file string) (out []known) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); !strings.HasPrefix(line, "#") {
			out = append(out, known{f[0], f[1], f[2], strings.Join(f[3:], " ")})
		}
	}
	return out
}

// withField returns a configuration of kube-proxy with a field.
func withField(path, value string) string {
	out := kubeProxyHead
	names := strings.Split(path, ".")
	for i, n := range names {
		out += strings.Repeat("  ", i) + n + ":"
		if i < len(names)-1 {
			out += "\n"
		}
	}
	return out + " " + value + "\n"
}

// Everything that a kube-proxy has run with is migrated, with a note if it is not a field any more.
func TestMigrateKnowsEveryFieldOfEveryKubeProxy(t *testing.T) {
	var listed []string
	for _, f := range readKnown(t, "kube-proxy-fields.txt") {
		listed = append(listed, f.name)
		in := withField(f.name, f.value)
		if f.name == "detectLocal.bridgeInterface" {
			in += "detectLocalMode: BridgeInterface\n"
		}
		text, notes, err := KubeProxy([]byte(in), Options{})
		if err != nil {
			t.Errorf("%s of %s: %v", f.name, f.since, err)
			continue
		}
		var out map[string]any
		if err := yaml.Unmarshal(text, &out); err != nil {
			t.Fatal(err)
		}
		all, kept := "\n"+notesText(notes), slices.Contains(keptFields(), f.name)
		if reported := strings.Contains(all, "\n"+f.name+": ") || strings.Contains(all, f.name+", ") || strings.Contains(all, ", "+f.name); !reported && !kept && f.until != "-" {
			t.Errorf("%s: nothing is said about it in\n%s", f.name, all)
		}
		if f.until != "-" && !strings.Contains(all, "\n"+f.name+": dropped: kube-proxy has ignored it since Kubernetes 1.") {
			t.Errorf("%s is not called a former field in\n%s", f.name, all)
		}
		if (f.until != "-") != (formerFields()[f.name] != "") {
			t.Errorf("%s: until %s, but former since %q", f.name, f.until, formerFields()[f.name])
		}
	}
	for _, f := range knownFields() {
		if !slices.ContainsFunc(listed, func(l string) bool { return l == f }) && f != "noMasqueradeCIDRs" && f != "nodePortRange" {
			t.Errorf("%s is in no kube-proxy", f)
		}
	}
}

func TestMigrateKnowsEveryFlagOfEveryKubeProxy(t *testing.T) {
	all := proxyFlags()
	for _, f := range readKnown(t, "kube-proxy-flags.txt") {
		if _, ok := all[f.name]; !ok {
			t.Errorf("--%s of %s is not known", f.name, f.since)
		}
		delete(all, f.name)
		flags := []string{"--" + f.name + "=" + strings.Trim(f.value, `"`)}
		if f.name == "pod-bridge-interface" {
			flags = append(flags, "--detect-local-mode=BridgeInterface")
		}
		_, notes, err := KubeProxy(nil, Options{Flags: flags})
		if err != nil {
			t.Errorf("--%s: %v", f.name, err)
		}
		if was := strings.Contains(notesText(notes), "--"+f.name+": dropped: kube-proxy has not had it since"); was != (f.until != "-" && formerFlags()[f.name] != "") {
			t.Errorf("--%s until %s: %s", f.name, f.until, notesText(notes))
		}
		if under := strings.ReplaceAll(flags[0], "-", "_"); f.since == "1.10" { // pflag accepts both
			if _, _, err := KubeProxy(nil, Options{Flags: append([]string{"--" + strings.TrimLeft(strings.SplitN(under, "=", 2)[0], "_") + "=" + strings.SplitN(flags[0], "=", 2)[1]}, flags[1:]...)}); err != nil {
				t.Errorf("--%s with underscores: %v", f.name, err)
			}
		}
	}
	delete(all, "service-node-port-range") // of the API server
	for name := range all {
		t.Errorf("--%s is in no kube-proxy", name)
	}
}

// kube-proxy decodes a file leniently, with a warning, if it cannot decode it strictly.
func TestMigrateReportsWhatKubeProxyIgnores(t *testing.T) {
	const nft = "mode: nftables\n"
	for name, c := range map[string]struct{ in, note, out string }{
		"metadata":                    {"metadata: {name: settings}\n" + nft, "metadata: dropped: kube-proxy ignores it", ""},
		"metadata of a tool":          {"metadata: {creationTimestamp: null, labels: {a: b}}\n" + nft, "metadata: dropped", ""},
		"metadata without contents":   {"metadata: {creationTimestamp: null}\n" + nft, "", ""},
		"a key twice":                 {"mode: iptables\nclusterCIDR: 10.0.0.0/8\n" + nft, `mode: line 5: key "mode" already set in map: kube-proxy uses the last one`, "clusterCIDR: 10.0.0.0/8\n"},
		"a key twice in an object":    {nft + "conntrack: {min: 5, min: 7}\n", `min: line 4: key "min" already set in map: kube-proxy uses the last one`, "conntrack:\n  min: 7\n"},
		"a former field that is 0":    {nft + "conntrack: {max: 0, min: 7}\n", "conntrack.max: dropped: kube-proxy has ignored it since Kubernetes 1.16", "conntrack:\n  min: 7\n"},
		"a former field alone":        {nft + "conntrack: {max: 524288}\n", "conntrack.max: dropped", ""},
		"a former field with no type": {nft + "udpIdleTimeout: [1]\n", "udpIdleTimeout: dropped", ""},
	} {
		text, notes, err := KubeProxy([]byte(kubeProxyHead+c.in), Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if all := notesText(notes); !strings.Contains("\n"+all, "\n"+c.note) || c.note == "" && all != "" {
			t.Errorf("%s: no %q in\n%s", name, c.note, all)
		}
		version, kind := "apiVersion: sluice.dev/v1alpha1\n", "kind: SluiceConfiguration\n"
		if string(text) != version+c.out+kind {
			t.Errorf("%s: got\n%s", name, text)
		}
	}
}

func TestMigrateOfTypingErrorsProposesNoOtherMeaning(t *testing.T) {
	for in, want := range map[string]string{
		"mdoe: nftables":               `mdoe: unknown field of kube-proxy's configuration (did you mean "mode"?)`,
		"Mode: nftables":               `Mode: unknown field of kube-proxy's configuration (did you mean "mode"?)`,
		"conntrack: {maximum: 5}":      "conntrack.maximum: unknown field of kube-proxy's configuration",
		"conntrack: {mx: 5}":           "conntrack.mx: unknown field of kube-proxy's configuration",
		"conntrack: {mni: 5}":          `conntrack.mni: unknown field of kube-proxy's configuration (did you mean "conntrack.min"?)`,
		"conntrack: {tcpTimeout: 5s}":  "conntrack.tcpTimeout: unknown field of kube-proxy's configuration",
		"conntrack: {udpTimout: 5s}":   `conntrack.udpTimout: unknown field of kube-proxy's configuration (did you mean "conntrack.udpTimeout"?)`,
		"featureGates: AllAlpha=true":  `featureGates: "AllAlpha=true" is not an object`,
		"clientConnection: /k":         `clientConnection: "/k" is not an object`,
		"ipvs: {syncPeriode: 5s}":      `ipvs.syncPeriode: unknown field of kube-proxy's configuration (did you mean "ipvs.syncPeriod"?)`,
		"winkernel: {enable: true}":    "winkernel.enable: unknown field of kube-proxy's configuration",
		"winkernel: 5":                 "winkernel: 5 is not an object",
		`oomScoreAdj: "-999"`:          `oomScoreAdj: "-999" is not an integer`,
		"iptables: {syncPeriod: 5}":    "iptables.syncPeriod: 5 is not a string (quote it)",
		"mode: userspace":              `mode: "userspace" is not a mode of kube-proxy on Linux: iptables, ipvs, nftables`,
		"nftables: {maxSyncPeriod: 5}": "nftables.maxSyncPeriod: unknown field of kube-proxy's configuration",
	} {
		_, _, err := KubeProxy([]byte(kubeProxyHead+in+"\n"), Options{})
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
}

func TestMigrateReadsFlagsAsKubeProxyDoes(t *testing.T) {
	const nft = "--proxy-mode=nftables"
	for name, c := range map[string]struct {
		flags     []string
		out, note string
	}{
		"a list that is given again":   {[]string{nft, "--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses", "192.0.2.0/24,198.51.100.0/24"}, "nodePortAddresses:\n- 10.0.0.0/8\n- 192.0.2.0/24\n- 198.51.100.0/24\n", ""},
		"a list in quotes":             {[]string{nft, `--nodeport-addresses="10.0.0.0/8","192.0.2.0/24"`}, "nodePortAddresses:\n- 10.0.0.0/8\n- 192.0.2.0/24\n", ""},
		"an empty list":                {[]string{nft, "--nodeport-addresses="}, "", ""},
		"feature gates that are added": {[]string{nft, "--feature-gates=A=T", "--feature-gates=B=1,C=0"}, "", "featureGates.A: dropped: sluice has no feature gates; generally available features are enabled\nfeatureGates.B: "},
		"True":                         {[]string{nft, "--masquerade-all=True"}, "masqueradeAll: true\n", ""},
		"1":                            {[]string{nft, "--masquerade-all=1"}, "masqueradeAll: true\n", ""},
		"T, then f":                    {[]string{nft, "--masquerade-all=T", "--masquerade-all=f"}, "", ""},
		"a value that is given again":  {[]string{nft, "--cluster-cidr=10.0.0.0/8", "--cluster-cidr=10.1.0.0/16"}, "clusterCIDR: 10.1.0.0/16\n", ""},
		"a host name":                  {[]string{nft, "--hostname-override= Node-A"}, "hostnameOverride: node-a\n", ""},
		"a host name of a variable":    {[]string{nft, "--hostname-override=$(NODE_NAME)"}, "", "--hostname-override: $(NODE_NAME) is not resolved: "},
		"no health check":              {[]string{nft, "--healthz-port=0"}, "healthzBindAddress: \"\"\n", ""},
		"no metrics":                   {[]string{nft, "--metrics-bind-address=", "--bind-address=::"}, "healthzBindAddress: '[::]:10256'\nmetricsBindAddress: \"\"\n", ""},
		"a port":                       {[]string{nft, "--healthz-bind-address=127.0.0.1", "--healthz-port=10300"}, "healthzBindAddress: 127.0.0.1:10300\n", ""},
		"a port beside a port":         {[]string{nft, "--healthz-bind-address=127.0.0.1:10301", "--healthz-port=10300"}, "healthzBindAddress: 127.0.0.1:10301\n", ""},
	} {
		text, notes, err := KubeProxy(nil, Options{Flags: c.flags})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := strings.NewReplacer("apiVersion: sluice.dev/v1alpha1\n", "", "kind: SluiceConfiguration\n", "").Replace(string(text))
		if got != c.out {
			t.Errorf("%s: got\n%s", name, text)
		}
		if all := notesText(notes); !strings.Contains(all, c.note) {
			t.Errorf("%s: no %q in\n%s", name, c.note, all)
		}
	}
	for flag, want := range map[string]string{
		"--masquerade-all=yes":             `--masquerade-all: "yes" is not true or false`,
		"--feature-gates=A":                `--feature-gates: A: "" is not true or false`,
		`--nodeport-addresses="10.0.0.0/8`: `--nodeport-addresses: "\"10.0.0.0/8" is not a list of values with commas between them`,
		"--bind-address=$(HOST_IP)":        "--bind-address: $(HOST_IP) is not resolved: it is in the environment of kube-proxy",
		"--cluster-cidr=${PodCIDR}":        "--cluster-cidr: ${PodCIDR} is not resolved",
		"--cluster-cidr=$CIDR":             "--cluster-cidr: $CIDR is not resolved",
		"--clustr-cidr=x":                  `--clustr-cidr: unknown flag of kube-proxy (did you mean "cluster-cidr"?)`,
	} {
		if _, _, err := KubeProxy(nil, Options{Flags: []string{flag}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", flag, err, want)
		}
	}
}

// The kubelet replaces $(NAME) in a Pod; only values of other objects are not in its manifest.
func TestMigrateResolvesVariablesOfAPod(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: kube-proxy}\nspec: {containers: [{name: kube-proxy, command: [kube-proxy], args: [--proxy-mode=nftables, --cluster-cidr=$(CIDR), " +
		"--hostname-override=$(NODE_NAME)], env: [{name: CIDR, value: 10.9.0.0/16}, {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}\n"
	for target, want := range map[string]string{ForHost: "--hostname-override: $(NODE_NAME) is not resolved", ForDaemonSet: "hostnameOverride: dropped: the DaemonSet sets --node"} {
		text, notes, err := KubeProxy([]byte(pod), Options{For: target, Server: "https://192.0.2.1"})
		if err != nil || !strings.Contains(string(text), "clusterCIDR: 10.9.0.0/16\n") || strings.Contains(string(text), "hostnameOverride") || !strings.Contains(notesText(notes), want) {
			t.Errorf("%s: %v, notes\n%s\n%s", target, err, notesText(notes), text)
		}
	}
}

// kube-proxy without a mode behaves differently from 1.40 on.
func TestMigrateOfAnUnsetModeSaysWhatItMeans(t *testing.T) {
	for in, want := range map[string]bool{"": true, "mode: ''\n": true, "mode: iptables\n": false} {
		_, notes, err := KubeProxy([]byte(kubeProxyHead+in), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if all := notesText(notes); strings.Contains(all, "before Kubernetes 1.40, and nftables from then on") != want || !strings.Contains(all, "nodePortAddresses: empty, which in mode iptables means all addresses") {
			t.Errorf("%q:\n%s", in, all)
		}
	}
}

func TestMigrateMapsTheGateOfExternalIPs(t *testing.T) {
	for in, want := range map[string]string{
		"featureGates: {AllowServiceExternalIPs: false}": "externalIPs: Ignore", "featureGates: {AllowServiceExternalIPs: true, X: false}": "externalIPs: Allow", "featureGates: {X: false}": "",
	} {
		text, notes, err := KubeProxy([]byte(kubeProxyHead+"mode: nftables\n"+in+"\n"), Options{})
		if err != nil || !strings.Contains(string(text), want) || want == "" && strings.Contains(string(text), "externalIPs") {
			t.Errorf("%s: %v\n%s", in, err, text)
		}
		for _, n := range notes {
			if n.Kind == Lost {
				t.Errorf("%s: lost %s", in, n)
			}
		}
	}
	if _, _, err := KubeProxy([]byte(kubeProxyHead+"featureGates: {AllowServiceExternalIPs: no-thanks}\n"), Options{}); err == nil ||
		err.Error() != `featureGates.AllowServiceExternalIPs: "no-thanks" is not true or false` {
		t.Error(err)
	}
}

// kube-proxy ignores leading zeros.
func TestMigrateWritesAddressesWithoutLeadingZeros(t *testing.T) {
	for in, want := range map[string]string{
		"clusterCIDR: 010.244.000.000/016, fd00::/48": "clusterCIDR: 10.244.0.0/16,fd00::/48\n",
		"nodePortAddresses: [010.0.0.0/08, primary]":  "nodePortAddresses:\n- 10.0.0.0/8\n- primary\n",
		"bindAddress: 192.000.002.001":                "bindAddress: 192.0.2.1\n",
		"healthzBindAddress: 127.000.000.001:10300":   "healthzBindAddress: 127.0.0.1:10300\n",
		"metricsBindAddress: 192.0.002.1":             "metricsBindAddress: 192.0.2.1:10249\n",
		"clusterCIDR: 10.244.1.0/16":                  "clusterCIDR: 10.244.1.0/16\n",
	} {
		text, _, err := KubeProxy([]byte(kubeProxyHead+"mode: nftables\n"+in+"\n"), Options{})
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", in, err, text)
		}
	}
	text, _, err := KubeProxy([]byte(kubeProxyHead+"mode: ipvs\nipvs: {excludeCIDRs: [010.0.0.0/8]}\n"), Options{})
	if err != nil || !strings.Contains(string(text), "excludeCIDRs:\n  - 10.0.0.0/8\n") {
		t.Errorf("%v\n%s", err, text)
	}
}
