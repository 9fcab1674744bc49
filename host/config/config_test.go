package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/policy"
)

const head = "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"

const full = head + `
hostnameOverride: node-a1
mode: ipvs
clusterCIDR: 10.244.1.0/16, fd00:10:244::/56
nodePortAddresses: [192.168.0.0/24, "::/0"]
masqueradeAll: true
masqueradeBit: 0
minSyncPeriod: 100ms
syncPeriod: 1m
bindAddress: 192.168.0.1
bindAddressHardFail: true
detectLocalMode: InterfaceNamePrefix
detectLocal: {interfaceNamePrefix: veth, bridgeInterface: cni0}
serviceLimits: {frontends: 100, endpoints: 200, sourceRanges: 300, elements: 400}
endpointCIDRs: [240.0.0.0/4]
conntrack:
  maxPerCore: 0
  min: 7
  tcpBeLiberal: true
  tcpEstablishedTimeout: 2h
  tcpCloseWaitTimeout: 0s
  udpTimeout: 10s
  udpStreamTimeout: 1m
sessionAffinity: {reservedClients: 100, sharedClients: 2000}
clientConnection: {kubeconfig: kubeconfig, server: "https://192.0.2.1:6443"}
ipvs:
  scheduler: sed
  strictARP: true
  tcpTimeout: 15m
  tcpFinTimeout: 2m
  udpTimeout: 5m
  excludeCIDRs: [203.0.113.7/24]
  interface: vips
  connectionMetrics: true
oomScoreAdj: 0
logging: {format: json, verbosity: 2}
enableProfiling: true
metricsBindAddress: "[::1]:9999"
healthzBindAddress: 0.0.0.0:10256
pluginCacheDir: /var/cache/sluice
pluginLimits: {cpuPercent: 25, memoryMiB: 512}
signals: {period: 5s}
metrics: {serviceConnections: All}
plugins:
- name: zone-spill
  file: plugins/zone-spill.wasm
  digest: sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  limits: {memoryMiB: 16, instances: 40}
  isolation: Namespace
  repeatOneIn: 8
- name: staged-drain
  file: /opt/staged-drain.wasm
policies:
- name: zone-aware
  plugins:
  - name: staged-drain
    settings: {stages: [{weight: 50, seconds: 10}], b: 9007199254740993, a: 0.5}
  - name: zone-spill
    serviceSettings: [tolerancePercent, demand]
- name: watch
  failurePolicy: Default
  shadow: [{name: zone-spill, settings: {}, serviceSettings: [demand]}]
- {name: hold, panic: {below: 50}}
- {name: guarded, plugins: [{name: zone-spill}], guard: {failedPercent: 3, window: 45s}}
- {name: hold-longer, ignoreHints: true, maxShedPercentPerSecond: 5, panic: {below: 70, hold: 10m}, plugins: [{name: zone-spill}]}
bindings:
- selector:
    matchLabels: {tier: back, app.kubernetes.io/name: cart}
    matchExpressions:
    - {key: app, operator: NotIn, values: [redis, ""]}
    - {key: canary, operator: DoesNotExist}
  namespaces: [shop]
  policy: zone-aware
- namespaces: [lab]
  policy: watch
  settings: {zone-spill: {demand: cpu}}
- namespaces: [shop]
  nodes: {percent: 0.3, selector: {matchLabels: {pool: web}}}
  policy: hold
- nodes: {percent: 20}
  policy: hold
allow:
- {namespaces: [shop, lab], policies: [watch, hold]}
- policies: [zone-aware]
defaultPolicy: watch
`

func TestParseEveryField(t *testing.T) {
	got, err := Parse([]byte(full), "/etc/sluice")
	if err != nil {
		t.Fatal(err)
	}
	drain := policy.Step{Plugin: "staged-drain", Settings: `{"a":0.5,"b":9007199254740993,"stages":[{"seconds":10,"weight":50}]}`}
	want := &Config{
		HostnameOverride:  "node-a1",
		Mode:              ModeIPVS,
		ClusterCIDR:       prefixes("10.244.0.0/16", "fd00:10:244::/56"),
		NodePortAddresses: prefixes("192.168.0.0/24", "::/0"),
		MasqueradeAll:     true,
		MinSyncPeriod:     100 * time.Millisecond,
		SyncPeriod:        time.Minute,
		BindAddress:       netip.MustParseAddr("192.168.0.1"), BindAddressHardFail: true,
		DetectLocalMode: InterfaceNamePrefix,
		DetectLocal:     DetectLocal{BridgeInterface: "cni0", InterfaceNamePrefix: "veth"},
		ServiceLimits:   ServiceLimits{Frontends: 100, Endpoints: 200, SourceRanges: 300, Elements: 400},
		EndpointCIDRs:   []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4")},
		Conntrack: Conntrack{
			Min: 7, TCPBeLiberal: true, TCPEstablishedTimeout: 2 * time.Hour, UDPTimeout: 10 * time.Second, UDPStreamTimeout: time.Minute,
		},
		SessionAffinity: SessionAffinity{ReservedClients: 100, SharedClients: 2000},
		IPVS: IPVS{
			Scheduler: "sed", StrictARP: true, TCPTimeout: 15 * time.Minute, TCPFinTimeout: 2 * time.Minute, UDPTimeout: 5 * time.Minute,
			ExcludeCIDRs: prefixes("203.0.113.0/24"), Interface: "vips",
			ConnectionMetrics: true,
		},
		ClientConnection: ClientConnection{Kubeconfig: "/etc/sluice/kubeconfig", Server: "https://192.0.2.1:6443"},
		Logging:          Logging{Format: LogJSON, Verbosity: 2}, EnableProfiling: true,
		MetricsBindAddress: "[::1]:9999",
		HealthzBindAddress: "0.0.0.0:10256",
		PluginCacheDir:     "/var/cache/sluice",
		PluginLimits:       PluginLimits{CPUPercent: 25, MemoryMiB: 512},
		Signals:            Signals{Period: 5 * time.Second},
		Metrics:            Metrics{ServiceConnections: ConnectionsAll},
		Plugins: []Plugin{
			{
				Name: "zone-spill", File: "/etc/sluice/plugins/zone-spill.wasm", Limits: Limits{MemoryMiB: 16, Instances: 40},
				Digest:    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
				Isolation: IsolateNamespace, RepeatOneIn: 8,
			},
			{Name: "staged-drain", File: "/opt/staged-drain.wasm", Isolation: IsolateNone, RepeatOneIn: 64},
		},
		Policies: []policy.Policy{
			{Name: "zone-aware", Steps: []policy.Step{drain, {Plugin: "zone-spill", ServiceSettings: []string{"demand", "tolerancePercent"}}}, MaxShedPercentPerSecond: 1},
			{
				Name: "watch", OnFailure: policy.Default, MaxShedPercentPerSecond: 1,
				Shadow: []policy.Step{{Plugin: "zone-spill/shadow", Settings: "{}", ServiceSettings: []string{"demand"}}},
			},
			{Name: "hold", Panic: policy.Panic{Below: 50, Hold: 5 * time.Minute}, MaxShedPercentPerSecond: 1},
			{Name: "guarded", Steps: []policy.Step{{Plugin: "zone-spill"}}, Guard: policy.Guard{FailedPercent: 3, Window: 45 * time.Second}, MaxShedPercentPerSecond: 1},
			{Name: "hold-longer", IgnoreHints: true, Steps: []policy.Step{{Plugin: "zone-spill"}}, Panic: policy.Panic{Below: 70, Hold: 10 * time.Minute}, MaxShedPercentPerSecond: 5},
		},
		Bindings: []policy.Binding{
			{
				Namespaces: []string{"shop"}, Policy: "zone-aware",
				Selector: policy.Selector{
					{Key: "app.kubernetes.io/name", Op: policy.In, Values: []string{"cart"}},
					{Key: "tier", Op: policy.In, Values: []string{"back"}},
					{Key: "app", Op: policy.NotIn, Values: []string{"redis", ""}},
					{Key: "canary", Op: policy.DoesNotExist},
				},
			},
			{Namespaces: []string{"lab"}, Policy: "watch", Settings: map[string]string{"zone-spill": `{"demand":"cpu"}`}},
			{Namespaces: []string{"shop"}, Policy: "hold", Nodes: policy.Nodes{Permille: 3, Selector: policy.Selector{{Key: "pool", Op: policy.In, Values: []string{"web"}}}}},
			{Policy: "hold", Nodes: policy.Nodes{Permille: 200}},
		},
		Allow:         []policy.Allow{{Namespaces: []string{"shop", "lab"}, Policies: []string{"watch", "hold"}}, {Policies: []string{"zone-aware"}}},
		DefaultPolicy: "watch",
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got.MasqueradeMark() != 1 {
		t.Errorf("mark %#x", got.MasqueradeMark())
	}
	if all := got.SettingsOf("zone-spill"); !slices.Equal(all, []PluginSettings{
		{"", "policies[0].plugins[1].settings"},
	}) {
		t.Errorf("settings of zone-spill: %q", all)
	}
	if all := got.SettingsOf("zone-spill/shadow"); !slices.Equal(all, []PluginSettings{
		{"{}", "policies[1].shadow[0].settings"}, {`{"demand":"cpu"}`, "bindings[1].settings[zone-spill]"},
	}) {
		t.Errorf("settings of zone-spill in shadows: %q", all)
	}
	set := got.PolicySet()
	if set.Bindings[1].Applied.Shadow[0].Settings != `{"demand":"cpu"}` || set.Bindings[0].Applied != nil {
		t.Errorf("bindings %+v", set.Bindings)
	}
	if !reflect.DeepEqual(set.Policies["zone-aware"].Steps[0], drain) || len(set.Policies["watch"].Shadow) != 1 || set.Default != "watch" {
		t.Errorf("policy set %+v", set)
	}
}

func TestEmptyConfigurationIsDefault(t *testing.T) {
	got, err := Parse([]byte(head+"nodePortAddresses: [primary]\nclusterCIDR: ''\n"), "")
	if err != nil {
		t.Fatal(err)
	}
	if !got.Equal(Default()) {
		t.Errorf("got %+v, want %+v", got, Default())
	}
	if got.MasqueradeMark() != 0x4000 || got.NodePortPrefixes() != nil {
		t.Errorf("mark %#x, NodePort prefixes %v", got.MasqueradeMark(), got.NodePortPrefixes())
	}
}

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
pluginLimits: {cpuPercent: 1001, memoryMiB: 100, memory: 1}
signals: {period: 100ms}
metrics: {serviceConnections: all}
plugins:
- {name: zone-spill, file: a.wasm, digest: "md5:1", limits: {memoryMiB: 65, instances: 1, cpu: 1}, isolation: namespace, repeatOneIn: 1}
- {name: zone-spill, file: b.wasm}
- {name: no file}
- {file: c.wasm}
policies:
- {name: a, mode: Try, failurePolicy: Never, plugins: []}
- {name: p, ignoreHints: true, panic: {below: 101, hold: 1500ms, above: 1}, maxShedPercentPerSecond: 0}
- {name: q, mode: Observe, panic: {hold: 2h}, shadow: [{name: zonespil, serviceSettings: [""]}]}
- name: b
  plugins:
  - {name: zonespil, settings: [1]}
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
ipvs.interface: "a/b" is not an interface name
ipvs.syncPeriod: unknown field
clusterCIDR: 10.245.0.0/16: more than one CIDR of IPv4
clusterCIDR: "x" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
nodePortAddresses[0]: primary cannot be combined with other values
nodePortAddresses[1]: "192.168.0.1" is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56
masqueradeBit: 32 is not between 0 and 31
minSyncPeriod: 10 is not a string (quote it)
syncPeriod: 1ms is less than 1s
bindAddress: 224.0.0.1 is not a unicast address
detectLocalMode: "BridgeInterfaces": must be ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix (did you mean "BridgeInterface"?)
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
signals.period: 100ms is less than 500ms
metrics.serviceConnections: "all": must be Watched or All
plugins[0].digest: "md5:1" is not sha256: followed by 64 lowercase hexadecimal digits
plugins[0].limits.memoryMiB: 65 is not between 1 and 64
plugins[0].limits.instances: 1 is not between 2 and 256
plugins[0].isolation: "namespace": must be Shared or Namespace
plugins[0].repeatOneIn: 1 is neither 0 nor between 2 and 1000000
plugins[1].name: "zone-spill": duplicate name of plugins[0]
plugins[2].name: "no file" is not a name of lowercase letters, digits, '-' and '.'
plugins[2].file: required
plugins[3].name: required
policies[0].mode: has been replaced by shadow: plugins that are listed there are asked and compared, and never enforced
policies[0].failurePolicy: "Never": must be LastGood or Default
policies[0].plugins: at least one plugin, shadow, or panic, is required
policies[1].maxShedPercentPerSecond: 0 is not between 1 and 100
policies[1].panic.below: 101 is not between 1 and 100
policies[1].panic.hold: 1.5s is not a whole number of seconds
policies[1].ignoreHints: without plugins the default rules decide, which follow hints
policies[2].mode: has been replaced by shadow: plugins that are listed there are asked and compared, and never enforced
policies[2].panic.below: required: a percentage of the endpoints
policies[2].panic.hold: 2h0m0s is more than 1h0m0s
policies[2].shadow[0].name: no plugin "zonespil" (did you mean "zone-spill"?)
policies[2].shadow[0].serviceSettings[0]: required
policies[3].plugins[0].name: no plugin "zonespil" (did you mean "zone-spill"?)
policies[3].plugins[0].settings: a list is not an object
bindings[0].namespaces[0]: "S" is not a name of lowercase letters, digits, '-' and '.'
bindings[0].selector.matchLabels[a b]: "a b" is not a label key
bindings[0].selector.matchLabels[a b]: "-" is not a label value
bindings[0].selector.matchExpressions[0].operator: "in": must be In, NotIn, Exists or DoesNotExist (did you mean "In"?)
bindings[0].selector.matchExpressions[1].key: "" is not a label key
bindings[0].selector.matchExpressions[1].values: required with operator In
bindings[0].selector.matchExpressions[2].values: must be empty with operator Exists
bindings[0].policy: no policy "c"
bindings[1].selector: matchLabels, matchExpressions, namespaces or nodes required; use defaultPolicy to select all Services
allow[0].policies: required
allow[1].namespaces[0]: "S" is not a name of lowercase letters, digits, '-' and '.'
allow[1].policies[1]: no policy "bb" (did you mean "b"?)
allow[1].policies[2]: "b": duplicate
allow[1].policies[3]: required
defaultPolicy: no policy "bb" (did you mean "b"?)`
	got := lines(err.Error())
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

func TestCheckReloadNamesFieldsThatNeedARestart(t *testing.T) {
	old, next := Default(), Default()
	next.DefaultPolicy, next.MasqueradeAll = "x", true
	if err := next.CheckReload(old); err != nil {
		t.Errorf("policies and masqueradeAll do not need a restart: %v", err)
	}
	if next.Equal(old) {
		t.Error("different configurations are equal")
	}
	next.SessionAffinity.SharedClients++
	if next.SameBackend(old) || next.CheckReload(old) != nil || !next.WithBackend(old).SameBackend(old) {
		t.Error("sessionAffinity does not change the backend or needs a restart")
	}
	next.SessionAffinity = old.SessionAffinity
	next.IPVS.Scheduler = "wlc"
	if !next.SameBackend(old) {
		t.Error("in mode nftables, ipvs.scheduler changes the backend")
	}
	if next.Mode = ModeIPVS; next.SameBackend(old) || next.CheckReload(old) != nil {
		t.Error("a change of the mode does not change the backend or needs a restart")
	}
	withMetrics := *next
	if withMetrics.IPVS.ConnectionMetrics = true; !withMetrics.SameBackend(next) || withMetrics.Equal(next) {
		t.Error("connectionMetrics changes the backend or is not compared")
	}
	next.HostnameOverride, next.SyncPeriod = "b", time.Hour
	err := next.CheckReload(old)
	if err == nil || !strings.Contains(err.Error(), "hostnameOverride") || !strings.Contains(err.Error(), "syncPeriod") {
		t.Errorf("got %v", err)
	}
}

func TestExampleConfigurationIsValid(t *testing.T) {
	c, err := Load("../../examples/boutique/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Policies) == 0 || len(c.Plugins) == 0 || len(c.Bindings) == 0 {
		t.Errorf("no policies, plugins or bindings: %+v", c)
	}
}

// FuzzParse checks that Parse does not panic and that accepted configurations are consistent.
func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(head))
	f.Add([]byte("{\"apiVersion\": \"sluice.dev/v1alpha1\", \"kind\": \"SluiceConfiguration\", \"plugins\": null}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text, "/d")
		if (err == nil) == (c == nil) {
			t.Fatalf("%v with %v", c, err)
		}
		if err != nil {
			return
		}
		set := c.PolicySet()
		if len(set.Policies) != len(c.Policies) {
			t.Errorf("policies of the same name: %v", c.Policies)
		}
		for _, p := range c.Policies {
			for _, s := range p.Steps {
				found := false
				for _, m := range c.Plugins {
					found = found || m.Name == s.Plugin && filepath.IsAbs(m.File)
				}
				if !found {
					t.Errorf("policy %s: no plugin %s", p.Name, s.Plugin)
				}
			}
		}
		for _, b := range c.Bindings {
			if set.Policies[b.Policy] == nil {
				t.Errorf("binding to %q", b.Policy)
			}
		}
		if set.Default != "" && set.Policies[set.Default] == nil {
			t.Errorf("default policy %q", set.Default)
		}
		for _, i := range c.PodInterfaces() {
			if !isInterface(strings.TrimSuffix(i, "*")) || i == "*" {
				t.Errorf("Pod interface %q", i)
			}
		}
		if c.SyncPeriod <= 0 || c.MinSyncPeriod < 0 || c.MasqueradeMark() == 0 {
			t.Errorf("%+v", c)
		}
	})
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
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
bindings:
- {namespaces: [lab], policy: p, settings: {b: {}, a: [1]}}
- {namespaces: [lab], policy: p, settings: {a: {y: 2}}}
- {namespaces: [lab], policy: q, settings: {a: {y: 2}}}
`
	_, err := Parse([]byte(text), "")
	want := `policies[0].plugins[0].serviceSettings[1]: required
policies[0].plugins[0].serviceSettings[2]: "x": duplicate
bindings[0].settings[a]: a list is not an object
bindings[0].settings[b]: policy p has no plugin "b" (plugins: a)
bindings[2].policy: no policy "q"`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
