package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

const head = "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"

const full = head + `
hostnameOverride: node-a1
mode: ipvs
clusterCIDR: 10.244.1.0/16, fd00:10:244::/56
nodePortAddresses: [primary, 192.168.0.0/24, "::/0"]
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
nodePortRange: 30000-35000
externalIPs: Ignore
noMasqueradeCIDRs: [10.244.0.0/16, fd00:10:244::/56]
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
  markMask: 0x7ff00000
  interface: vips
  connectionMetrics: true
oomScoreAdj: 0
logging: {format: json, verbosity: 2}
enableProfiling: true
metricsBindAddress: "[::1]:9999"
healthzBindAddress: 0.0.0.0:10256
statusPageBindAddress: 127.0.0.1:10251
stateBindAddress: 127.0.0.1:10252
pluginDir: modules
pluginCacheDir: /var/cache/sluice
pluginLimits: {cpuPercent: 25, memoryMiB: 512, compileTime: 1m}
pluginImages: {cacheMiB: 128, dockerConfig: pull/config.json, caFile: /etc/ca.crt, plainHTTP: ["registry.lab:5000"]}
signals: {period: 5s}
metrics: {serviceConnections: All}
plugins:
- name: locality
  file: plugins/locality.wasm
  digest: sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  limits: {memoryMiB: 16, instances: 40}
  isolation: Namespace
  repeatOneIn: 8
- name: lifecycle
  file: /opt/lifecycle.wasm
- name: pulled
  image: registry.lab:5000/acme/spill@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
policies:
- name: zone-aware
  plugins:
  - name: lifecycle
    settings: {drain: {stages: [{percent: 50, duration: 10s}], b: 9007199254740993, a: 0.5}}
  - name: locality
    serviceSettings: [hysteresisPercent, demand]
- name: watch
  failurePolicy: Default
  shadow: [{name: locality, settings: {}, serviceSettings: [demand]}]
- {name: hold, panic: {belowPercent: 50}}
- {name: guarded, plugins: [{name: locality}], guard: {failedPercent: 3, window: 45s}}
- {name: hold-longer, ignoreHints: true, maxShedPercentPerSecond: 5, panic: {belowPercent: 70, hold: 10m}, plugins: [{name: locality}]}
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
  settings: {locality: {demand: cpu}}
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
	const drain = `{"drain":{"a":0.5,"b":9007199254740993,"stages":[{"duration":"10s","percent":50}]}}`
	percent := func(n float64) *float64 { return &n }
	want := &Config{
		HostnameOverride:    "node-a1",
		Mode:                ModeIPVS,
		ClusterCIDR:         prefixes("10.244.0.0/16", "fd00:10:244::/56"),
		NodePortAddresses:   NodePorts{prefixes("192.168.0.0/24", "::/0"), true},
		MinSyncPeriod:       100 * time.Millisecond,
		SyncPeriod:          time.Minute,
		BindAddressHardFail: true,
		DetectLocalMode:     InterfaceNamePrefix,
		DetectLocal:         DetectLocal{BridgeInterface: "cni0", InterfaceNamePrefix: "veth"},
		Planning: planner.Planning{
			BindAddress: netip.MustParseAddr("192.168.0.1"), MasqueradeAll: true, ExternalIPs: planner.IgnoreExternalIPs,
			ServiceLimits: planner.Limits{Frontends: 100, Endpoints: 200, SourceRanges: 300, Elements: 400},
			EndpointCIDRs: prefixes("240.0.0.0/4"), NoMasqueradeCIDRs: prefixes("10.244.0.0/16", "fd00:10:244::/56"),
		},
		NodePortRange: PortRange{30000, 35000},
		Conntrack: Conntrack{
			Min: 7, TCPBeLiberal: true, TCPEstablishedTimeout: 2 * time.Hour, UDPTimeout: 10 * time.Second, UDPStreamTimeout: time.Minute,
		},
		OOMScoreAdjSet:  true,
		SessionAffinity: Affinity{ReservedClients: 100, SharedClients: 2000},
		IPVS: IPVS{
			Scheduler: "sed", StrictARP: true, TCPTimeout: 15 * time.Minute, TCPFinTimeout: 2 * time.Minute, UDPTimeout: 5 * time.Minute,
			ExcludeCIDRs: prefixes("203.0.113.0/24"), Interface: "vips", MarkMask: 0x7ff00000,
			ConnectionMetrics: true,
		},
		ClientConnection: Client{Kubeconfig: "/etc/sluice/kubeconfig", Server: "https://192.0.2.1:6443"},
		Logging:          Logging{Format: LogJSON, Verbosity: 2}, EnableProfiling: true,
		MetricsBindAddress:    "[::1]:9999",
		HealthzBindAddress:    "0.0.0.0:10256",
		StatusPageBindAddress: "127.0.0.1:10251",
		StateBindAddress:      "127.0.0.1:10252",
		PluginDir:             "/etc/sluice/modules",
		PluginCacheDir:        "/var/cache/sluice",
		PluginLimits:          PluginLimits{CPUPercent: 25, MemoryMiB: 512, CompileTime: time.Minute},
		PluginImages: PluginImages{
			CacheMiB: 128, DockerConfig: "/etc/sluice/pull/config.json", CAFile: "/etc/ca.crt", PlainHTTP: []string{"registry.lab:5000"},
		},
		Signals: Signals{Period: 5 * time.Second},
		Metrics: Metrics{ServiceConnections: ConnectionsAll},
		Plugins: []Plugin{
			{
				Name: "locality", File: "/etc/sluice/plugins/locality.wasm", Limits: Limits{MemoryMiB: 16, Instances: 40},
				Digest:    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
				Isolation: IsolateNamespace, RepeatOneIn: 8,
			},
			{Name: "lifecycle", File: "/opt/lifecycle.wasm", Limits: Limits{64, 16}, Isolation: IsolateNone, RepeatOneIn: 64},
			{
				Name: "pulled", Limits: Limits{64, 16}, Isolation: IsolateNone, RepeatOneIn: 64,
				Image: imageref.Ref{Registry: "registry.lab:5000", Repository: "acme/spill", Digest: "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
			},
		},
		Policies: []Policy{
			{Name: "zone-aware", Plugins: []Step{{Name: "lifecycle", Settings: drain}, {Name: "locality", ServiceSettings: []string{"hysteresisPercent", "demand"}}}, MaxShed: 1},
			{
				Name: "watch", FailurePolicy: policy.Default, MaxShed: 1,
				Shadow: []Step{{Name: "locality", Settings: "{}", ServiceSettings: []string{"demand"}}},
			},
			{Name: "hold", Panic: &Panic{Below: 50, Hold: 5 * time.Minute}, MaxShed: 1},
			{Name: "guarded", Plugins: []Step{{Name: "locality"}}, Guard: &Guard{FailedPercent: 3, Window: 45 * time.Second}, MaxShed: 1},
			{Name: "hold-longer", IgnoreHints: true, Plugins: []Step{{Name: "locality"}}, Panic: &Panic{Below: 70, Hold: 10 * time.Minute}, MaxShed: 5},
		},
		Bindings: []Binding{
			{
				Namespaces: []string{"shop"}, Policy: "zone-aware",
				Selector: Selector{
					MatchLabels:      map[string]string{"tier": "back", "app.kubernetes.io/name": "cart"},
					MatchExpressions: []Requirement{{"app", "NotIn", []string{"redis", ""}}, {"canary", "DoesNotExist", nil}},
				},
			},
			{Namespaces: []string{"lab"}, Policy: "watch", Settings: map[string]Settings{"locality": `{"demand":"cpu"}`}},
			{Namespaces: []string{"shop"}, Policy: "hold", Nodes: &Nodes{percent(0.3), &Selector{MatchLabels: map[string]string{"pool": "web"}}}},
			{Policy: "hold", Nodes: &Nodes{Percent: percent(20)}},
		},
		Allow:         []Allow{{Namespaces: []string{"shop", "lab"}, Policies: []string{"watch", "hold"}}, {Policies: []string{"zone-aware"}}},
		DefaultPolicy: "watch",
	}
	if d := cmp.Diff(*want, *got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if got.MasqueradeMark() != 1 {
		t.Errorf("mark %#x", got.MasqueradeMark())
	}
	if all := got.SettingsOf("locality"); !slices.Equal(all, []PluginSettings{
		{"", "policies[0].plugins[1].settings"},
	}) {
		t.Errorf("settings of locality: %q", all)
	}
	if all := got.SettingsOf("locality/shadow"); !slices.Equal(all, []PluginSettings{
		{"{}", "policies[1].shadow[0].settings"}, {`{"demand":"cpu"}`, "bindings[1].settings[locality]"},
	}) {
		t.Errorf("settings of locality in shadows: %q", all)
	}
	set := got.PolicySet()
	if set.Bindings[1].Applied.Shadow[0].Settings != `{"demand":"cpu"}` || set.Bindings[0].Applied != nil {
		t.Errorf("bindings %+v", set.Bindings)
	}
	if set.Default != "watch" || len(set.Allow) != 2 {
		t.Errorf("policy set %+v", set)
	}
	if want := (policy.Binding{Namespaces: []string{"shop"}, Policy: "zone-aware", Selector: policy.Selector{
		{Key: "app.kubernetes.io/name", Op: policy.In, Values: []string{"cart"}}, {Key: "tier", Op: policy.In, Values: []string{"back"}},
		{Key: "app", Op: policy.NotIn, Values: []string{"redis", ""}}, {Key: "canary", Op: policy.DoesNotExist},
	}}); !reflect.DeepEqual(set.Bindings[0], want) {
		t.Errorf("binding\n%+v, want\n%+v", set.Bindings[0], want)
	}
	if want := (policy.Nodes{Permille: 3, Selector: policy.Selector{{Key: "pool", Op: policy.In, Values: []string{"web"}}}}); !reflect.DeepEqual(set.Bindings[2].Nodes, want) {
		t.Errorf("nodes %+v, want %+v", set.Bindings[2].Nodes, want)
	}
	for _, want := range []*policy.Policy{
		{Name: "zone-aware", Steps: []policy.Step{{Plugin: "lifecycle", Settings: drain}, {Plugin: "locality", ServiceSettings: []string{"demand", "hysteresisPercent"}}}, MaxShedPercentPerSecond: 1},
		{Name: "watch", OnFailure: policy.Default, MaxShedPercentPerSecond: 1, Shadow: []policy.Step{{Plugin: "locality/shadow", Settings: "{}", ServiceSettings: []string{"demand"}}}},
		{Name: "hold", Panic: policy.Panic{Below: 50, Hold: 5 * time.Minute}, MaxShedPercentPerSecond: 1},
		{Name: "guarded", Steps: []policy.Step{{Plugin: "locality"}}, Guard: policy.Guard{FailedPercent: 3, Window: 45 * time.Second}, MaxShedPercentPerSecond: 1},
		{Name: "hold-longer", IgnoreHints: true, Steps: []policy.Step{{Plugin: "locality"}}, Panic: policy.Panic{Below: 70, Hold: 10 * time.Minute}, MaxShedPercentPerSecond: 5},
	} {
		if d := cmp.Diff(want, set.Policies[want.Name]); d != "" {
			t.Errorf("%s: -want +got\n%s", want.Name, d)
		}
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
	if got.MasqueradeMark() != 0x4000 || got.NodePortAddresses.Prefixes != nil {
		t.Errorf("mark %#x, NodePort prefixes %v", got.MasqueradeMark(), got.NodePortAddresses)
	}
}

func TestReloadNamesFieldsThatNeedARestart(t *testing.T) {
	checkReload := func(c, old *Config) error { _, err := c.WithFixed(old); return err }
	old, next := Default(), Default()
	next.DefaultPolicy, next.MasqueradeAll = "x", true
	if err := checkReload(next, old); err != nil {
		t.Errorf("policies and masqueradeAll do not need a restart: %v", err)
	}
	if next.Equal(old) {
		t.Error("different configurations are equal")
	}
	next.SessionAffinity.SharedClients++
	if next.SameBackend(old) || checkReload(next, old) != nil || !next.WithBackend(old).SameBackend(old) {
		t.Error("sessionAffinity does not change the backend or needs a restart")
	}
	next.SessionAffinity = old.SessionAffinity
	next.IPVS.Scheduler = "wlc"
	if !next.SameBackend(old) {
		t.Error("in mode nftables, ipvs.scheduler changes the backend")
	}
	if next.Mode = ModeIPVS; next.SameBackend(old) || checkReload(next, old) != nil {
		t.Error("a change of the mode does not change the backend or needs a restart")
	}
	withMetrics := *next
	if withMetrics.IPVS.ConnectionMetrics = true; !withMetrics.SameBackend(next) || withMetrics.Equal(next) {
		t.Error("connectionMetrics changes the backend or is not compared")
	}
	next.HostnameOverride, next.SyncPeriod = "b", time.Hour
	err := checkReload(next, old)
	if err == nil || !strings.Contains(err.Error(), "hostnameOverride") || !strings.Contains(err.Error(), "syncPeriod") {
		t.Errorf("got %v", err)
	}
}

func TestExampleConfigurationIsValid(t *testing.T) {
	c, err := Load("../../../examples/boutique/sluice.yaml")
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
			for _, s := range p.Plugins {
				found := false
				for _, m := range c.Plugins {
					found = found || m.Name == s.Name && (m.File == "" || filepath.IsAbs(m.File))
				}
				if !found {
					t.Errorf("policy %s: no plugin %s", p.Name, s.Name)
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

func TestNodePortAddressesOfKEP6032(t *testing.T) {
	for text, want := range map[string]string{
		"[]":                        "[primary]",
		"[primary]":                 "[primary]",
		"[primary, localhost]":      "[primary 127.0.0.0/8 ::1/128]",
		"[localhost]":               "[127.0.0.0/8 ::1/128]",
		"[all]":                     "[0.0.0.0/0 ::/0]",
		"[192.168.0.0/24, primary]": "[primary 192.168.0.0/24]",
	} {
		c, err := Parse([]byte(head+"nodePortAddresses: "+text+"\n"), "")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		again, err := json.Marshal(c.Effective())
		if err != nil {
			t.Fatal(err)
		}
		var f struct{ NodePortAddresses []string }
		if err := json.Unmarshal(again, &f); err != nil || fmt.Sprint(f.NodePortAddresses) != want {
			t.Errorf("%s: in force: %s, want %s", text, f.NodePortAddresses, want)
		}
		if d, err := Parse(again, ""); err != nil || !d.Equal(c) {
			t.Errorf("%s: what is in force does not parse to the same: %v", text, err)
		}
	}
}
