package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestAllErrorsAreReportedWithPaths(t *testing.T) {
	text := `
apiVersion: sluice.dev/v1
kind: SluiceConfiguraton
hostnameOverride: Node_1
mode: iptables
clusterCIDR: 10.244.0.0/16,10.245.0.0/16,x
nodePortAddresses: [primary, 192.168.0.1]
masqueradeAll: "yes"
masqueradebit: 14
masqueradeBit: 32
minSyncPeriod: 10
syncPeriod: 1ms
metricsBindAddress: localhost:10249
bindAddress: 224.0.0.1
detectLocalMode: BridgeInterfaces
detectLocal: {interfaceNamePrefix: "veth*", bridge: x}
serviceLimits: {frontends: 0, endpoints: 65537, sourceRanges: 5001, elements: -1}
endpointCIDRs: [240.0.0.0]
conntrack: {maxPerCore: -1, min: -2, tcpEstablishedTimeout: -1s, udpTimeout: 1500ms, udpStreamTimeout: 1000000h, tcpCloseWaitTimeout: 3600}
sessionAffinity: {reservedClients: 0, sharedClients: 16777217}
ipvs: {scheduler: "wrr;", tcpTimeout: 1500ms, udpTimeout: -1s, excludeCIDRs: [10.0.0.1], interface: a/b, syncPeriod: 1s}
clientConnection: {server: "192.0.2.1:6443", qps: 5}
oomScoreAdj: -1001
logging: {format: yaml, verbosity: -1, flushFrequency: 5s}
pluginLimits: {cpuPercent: 1001, memoryMiB: 100, compileTime: 601s, memory: 1}
signals: {period: 100ms}
metrics: {serviceConnections: all}
plugins:
- {name: locality, file: a.wasm, digest: "md5:1", limits: {memoryMiB: 65, instances: 1, cpu: 1}, isolation: namespace, repeatOneIn: 1}
- {name: locality, file: b.wasm}
- {name: no file}
- {file: c.wasm}
- {name: tagged, image: "ghcr.io/acme/spill:v1"}
- {name: both, file: c.wasm, image: "ghcr.io/acme/spill:v1", verify: {}}
pluginImages: {cacheMiB: 16, plainHTTP: [a.b, registry, a.b]}
policies:
- {name: a, mode: Try, failurePolicy: Never, plugins: []}
- {name: p, ignoreHints: true, panic: {belowPercent: 101, hold: 1500ms, above: 1}, maxShedPercentPerSecond: 0}
- {name: q, mode: Observe, panic: {hold: 2h}, shadow: [{name: localty, serviceSettings: [""]}]}
- name: b
  plugins:
  - {name: localty, settings: [1]}
  - name: 7
bindings:
- {policy: c, namespaces: [S], selector: {matchLabels: {"a b": "-", tier: 5}, matchExpressions: [{key: x, operator: in}, {key: "", operator: In}, {key: zone, operator: Exists, values: [z]}]}}
- {policy: b}
allow:
- {}
- {namespaces: [S], policies: [b, bb, b, ""], policy: b}
defaultPolicy: bb
`
	_, err := Parse([]byte(text), "")
	if err == nil {
		t.Fatal("accepted")
	}
	want := `bindings[0].selector.matchLabels[tier]: 5 is not a string (quote it)
masqueradeAll: "yes" is not true or false
clientConnection.qps: unknown field
masqueradebit: unknown field (did you mean "masqueradeBit"?)
plugins[0].limits.cpu: unknown field
policies[1].panic.above: unknown field
allow[1].policy: unknown field
policies[3].plugins[1].name: 7 is not a string (quote it)
apiVersion: "sluice.dev/v1": must be sluice.dev/v1alpha1
kind: "SluiceConfiguraton": must be SluiceConfiguration
hostnameOverride: "Node_1" is not a name of lowercase letters, digits, '-' and '.'
mode: "iptables": must be nftables or ipvs
ipvs.scheduler: "wrr;" is not a scheduler name such as wrr, wlc or mh
ipvs.tcpTimeout: 1.5s is not a whole number of seconds
ipvs.udpTimeout: -1s is less than 0s
ipvs.excludeCIDRs[0]: "10.0.0.1" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
ipvs.interface: "a/b" is not an interface name: 1 to 15 printable ASCII characters except '/', '*', '#' and spaces
ipvs.syncPeriod: unknown field
clusterCIDR: 10.245.0.0/16: more than one CIDR of IPv4
clusterCIDR: "x" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
nodePortAddresses[1]: "192.168.0.1" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
masqueradeBit: 32 is not between 0 and 31
minSyncPeriod: 10 is not a string (quote it)
syncPeriod: 1ms is less than 1s
bindAddress: 224.0.0.1 is not a unicast address
detectLocalMode: "BridgeInterfaces": must be ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix (did you mean "BridgeInterface"?)
detectLocal.interfaceNamePrefix: "veth*" is not an interface name: 1 to 15 printable ASCII characters except '/', '*', '#' and spaces
detectLocal.bridge: unknown field
serviceLimits.frontends: 0 is not between 1 and 200000
serviceLimits.endpoints: 65537 is not between 1 and 65536
serviceLimits.sourceRanges: 5001 is not between 1 and 5000
serviceLimits.elements: -1 is not between 1 and 10000000
endpointCIDRs[0]: "240.0.0.0" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
conntrack.maxPerCore: -1 is negative
conntrack.min: -2 is negative
conntrack.tcpEstablishedTimeout: -1s is less than 0s
conntrack.tcpCloseWaitTimeout: 3600 is not a string (quote it)
conntrack.udpTimeout: 1.5s is not a whole number of seconds
conntrack.udpStreamTimeout: 1000000h0m0s exceeds the kernel's maximum of 2147483s
sessionAffinity.reservedClients: 0 is not between 1 and 16777216
sessionAffinity.sharedClients: 16777217 is not between 1 and 16777216
clientConnection.server: "192.0.2.1:6443" is not a URL such as https://192.0.2.1:6443
oomScoreAdj: -1001 is not between -1000 and 1000
logging.format: "yaml": must be text or json
logging.verbosity: -1 is negative
logging.flushFrequency: unknown field
pluginLimits.memory: unknown field
metricsBindAddress: "localhost:10249" is not an IP address and port such as 127.0.0.1:10249 or [::]:10249
pluginLimits.cpuPercent: 1001 is not between 0 and 1000
pluginLimits.memoryMiB: 100 is not between 240 and 65536
pluginLimits.compileTime: 10m1s is more than 10m0s
signals.period: 100ms is less than 500ms
metrics.serviceConnections: "all": must be Watched or All (did you mean "All"?)
plugins[0].digest: "md5:1" is not sha256: followed by 64 lowercase hexadecimal digits
plugins[0].limits.memoryMiB: 65 is not between 1 and 64
plugins[0].limits.instances: 1 is not between 2 and 256
plugins[0].isolation: "namespace": must be Shared or Namespace (did you mean "Namespace"?)
plugins[0].repeatOneIn: 1 is neither 0 nor between 2 and 1000000
plugins[1].name: "locality": duplicate name of plugins[0]
plugins[2].name: "no file" is not a name of lowercase letters, digits, '-' and '.'
plugins[2].file: required, or image
plugins[3].name: required
plugins[4].image: tag v1 can change: write ghcr.io/acme/spill@sha256:…, with the digest of the image's manifest
plugins[5].file: the plugin has an image as well; one of both is required
plugins[5].image: tag v1 can change: write ghcr.io/acme/spill@sha256:…, with the digest of the image's manifest
pluginImages.cacheMiB: 16 is not between 17 and 65536
pluginImages.plainHTTP[1]: "registry" is not a registry, such as registry.lab:5000
pluginImages.plainHTTP[2]: "a.b": duplicate
policies[0].mode: unknown field
policies[0].failurePolicy: "Never": must be LastGood or Default
policies[0].plugins: at least one plugin, shadow, panic, or trafficHint, is required
policies[1].maxShedPercentPerSecond: 0 is not between 1 and 100
policies[1].panic.belowPercent: 101 is not between 1 and 100
policies[1].panic.hold: 1.5s is not a whole number of seconds
policies[1].ignoreHints: without plugins the default rules decide, which follow hints
policies[2].mode: unknown field
policies[2].panic.belowPercent: required: a percentage of the endpoints
policies[2].panic.hold: 2h0m0s is more than 1h0m0s
policies[2].shadow[0].name: no plugin "localty" (did you mean "locality"?)
policies[2].shadow[0].serviceSettings[0]: required
policies[3].plugins[0].name: no plugin "localty" (did you mean "locality"?)
policies[3].plugins[0].settings: a list is not an object
plugins[5].verify.key: required: a file with a public key
bindings[0].namespaces[0]: "S" is not a name of lowercase letters, digits, '-' and '.'
bindings[0].selector.matchLabels[a b]: "a b" is not a label key
bindings[0].selector.matchLabels[a b]: "-" is not a label value
bindings[0].selector.matchExpressions[0].operator: "in": must be In, NotIn, Exists or DoesNotExist (did you mean "In"?)
bindings[0].selector.matchExpressions[1].key: "" is not a label key
bindings[0].selector.matchExpressions[1].values: required with operator In
bindings[0].selector.matchExpressions[2].values: must be empty with operator Exists
bindings[0].policy: no policy "c"
bindings[1]: selector (matchLabels, matchExpressions), namespaces or nodes required; use defaultPolicy to select all Services
allow[0].policies: required
allow[1].namespaces[0]: "S" is not a name of lowercase letters, digits, '-' and '.'
allow[1].policies[1]: no policy "bb" (did you mean "b"?)
allow[1].policies[2]: "b": duplicate
allow[1].policies[3]: required
defaultPolicy: no policy "bb" (did you mean "b"?)`
	for _, line := range []string{`line 9: masqueradebit: `, `line 31: plugins[2].file: `, `line 43: policies[3].plugins[1].name: `, `line 50: defaultPolicy: `} {
		if !strings.Contains("\n"+err.Error(), "\n"+line) {
			t.Errorf("no %q", line)
		}
	}
	got := lines(lineNumbers.ReplaceAllString(err.Error(), ""))
	for line := range lines(want) {
		if !got[line] {
			t.Errorf("not reported: %s", line)
		}
		delete(got, line)
	}
	for line := range got {
		t.Errorf("unexpected: %s", line)
	}
}

var lineNumbers = regexp.MustCompile(`(?m)^line \d+: `)

func lines(s string) map[string]bool {
	out := map[string]bool{}
	for l := range strings.SplitSeq(s, "\n") {
		out[l] = true
	}
	return out
}

func TestParseRejectsOtherDocuments(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":           {"# nothing\n", "empty"},
		"kube-proxy's":    {"apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n", "kind: KubeProxyConfiguration is kube-proxy's: convert the file with 'sluice config migrate'"},
		"two documents":   {head + "---\n" + head, "line 3: second document"},
		"a key twice":     {head + "mode: nftables\nmode: nftables\n", `"mode" already set`},
		"no YAML":         {head + "plugins: [\n", "line "},
		"a list":          {"[]\n", "not an object"},
		"another kind":    {"apiVersion: v1\nkind: ConfigMap\n", "must be SluiceConfiguration"},
		"an empty name":   {head + "defaultPolicy: x\n", `no policy "x"`},
		"null everywhere": {"apiVersion:\nkind:\n", "apiVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse([]byte(c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestLoadErrorsNameTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(path, []byte(head+"plugins: [{name: p, file: ../p.wasm}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(filepath.Dir(filepath.Dir(path)), "p.wasm"); c.Plugins[0].File != want {
		t.Errorf("plugin file %s, want %s", c.Plugins[0].File, want)
	}
	if err := os.WriteFile(path, []byte("mode: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("bad: %v", err)
	}
}

func TestParseLimitsAliasesAndNesting(t *testing.T) {
	for text, want := range map[string]string{
		"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a, ", 99) + "*a]\n": "aliases expand the document to 101 MiB",
		"a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200):                             "line 1: nested more than 100 levels deep",
	} {
		if _, err := Parse([]byte(text), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want %s", err, want)
		}
	}
}

func TestParseLimitsNumberOfErrors(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nnodePortAddresses: [x")
	b.WriteString(strings.Repeat(", x", 99_999) + "]\n")
	for i := range 100_000 {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	_, err := Parse([]byte(b.String()), "")
	if err == nil || len(err.Error()) > 20_000 || !strings.HasSuffix(err.Error(), "\nand 199900 more errors in this file") {
		t.Errorf("error %.300v", err)
	}
}

func TestErrorsOfSettingsNameTheirField(t *testing.T) {
	const text = head + `
plugins: [{name: a, file: a.wasm}, {name: b, file: b.wasm}]
policies:
- {name: p, plugins: [{name: a, settings: {x: 1}, serviceSettings: [x, "", x]}]}
- {name: r, plugins: [{name: a}, {name: b}, {name: a}]}
bindings:
- {namespaces: [lab], policy: p, settings: {b: {}, a: [1]}}
- {namespaces: [lab], policy: p, settings: {a: {y: 2}}}
- {namespaces: [lab], policy: q, settings: {a: {y: 2}}}
`
	_, err := Parse([]byte(text), "")
	want := `line 6: policies[0].plugins[0].serviceSettings[1]: required
line 6: policies[0].plugins[0].serviceSettings[2]: "x": duplicate
line 7: policies[1].plugins[2].name: "a": duplicate of plugins[0]: list the module in plugins under another name too
line 9: bindings[0].settings[a]: a list is not an object
line 9: bindings[0].settings[b]: policy p has no plugin "b" (plugins: a)
line 11: bindings[2].policy: no policy "q"`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestMarkMask(t *testing.T) {
	const head = "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"
	for text, want := range map[string]string{
		"mode: ipvs\nipvs: {markMask: 0x7f00}":                       `ipvs.markMask: 0x7f00 has 7 bits, and at least 8 are needed`,
		"mode: ipvs\nipvs: {markMask: 0x0000ff00}":                   `ipvs.markMask: 0xff00 contains bit 14, which is masqueradeBit`,
		"mode: ipvs\nmasqueradeBit: 3":                               `ipvs.markMask: 0x1f7f contains bit 3, which is masqueradeBit`,
		"mode: ipvs\nipvs: {markMask: 0x1ffffffff}":                  `ipvs.markMask: 8589934591: not a mask of 32 bits such as 0x1f7f`,
		`ipvs: {markMask: "fff00000"}`:                               `ipvs.markMask: "fff00000": not a mask of 32 bits such as 0x1f7f`,
		"ipvs: {markMask: -1}":                                       `ipvs.markMask: -1: not a mask of 32 bits such as 0x1f7f`,
		"ipvs: {markMask: [1]}":                                      `ipvs.markMask: a list: not a mask of 32 bits such as 0x1f7f`,
		"masqueradeBit: 3":                                           "",
		"mode: ipvs\nipvs: {markMask: 0x7ff00000}":                   "",
		"mode: ipvs\nipvs: {markMask: \"0x0ffe0000\"}":               "",
		"mode: ipvs\nmasqueradeBit: 3\nipvs: {markMask: 0xfff00000}": "",
	} {
		_, err := Parse([]byte(head+text+"\n"), "")
		got := ""
		if err != nil {
			got = lineNumbers.ReplaceAllString(err.Error(), "")
		}
		if got != want {
			t.Errorf("%s: %q, not %q", text, got, want)
		}
	}
}

// TestDurationsHaveAnUpperBound: what sluice computes with them is a duration too.
func TestDurationsHaveAnUpperBound(t *testing.T) {
	for field, text := range map[string]string{
		"syncPeriod": "syncPeriod: 2000000h", "minSyncPeriod": "minSyncPeriod: 2000000h", "signals.period": "signals: {period: 2000000h}", "conntrack.udpTimeout": "conntrack: {udpTimeout: 2000000h}",
		"ipvs.tcpTimeout": "ipvs: {tcpTimeout: 2000000h}", "policies[0].panic.hold": "policies: [{name: p, panic: {belowPercent: 5, hold: 2000000h}}]",
		"policies[0].guard.window": "plugins: [{name: a, file: a}]\npolicies: [{name: p, plugins: [{name: a}], guard: {failedPercent: 5, window: 2000000h}}]",
	} {
		if _, err := Parse([]byte(head+text+"\n"), ""); err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, s := range []string{"NaN", "1e30h", "-1s", ".h"} {
		if _, err := Parse([]byte(head+"syncPeriod: "+s+"\n"), ""); err == nil {
			t.Errorf("%s is accepted", s)
		}
	}
	for _, n := range []string{".nan", ".inf", "1e3", "1.5", "4294967296", "0x7fffffffffffffffff"} {
		if _, err := Parse([]byte(head+"masqueradeBit: "+n+"\n"), ""); err == nil {
			t.Errorf("masqueradeBit %s is accepted", n)
		}
	}
}
