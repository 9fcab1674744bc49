package config

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/host/policy"
)

// Effective returns the configuration in the structure of its file, with all defaults, for encoding/json. Parsing the
// result returns c.
func (c *Config) Effective() any {
	number := func(n int) *int32 { v := int32(n); return &v }
	f := &configFile{
		APIVersion: APIVersion, Kind: Kind, HostnameOverride: c.HostnameOverride, Mode: c.Mode,
		BindAddressFail: c.BindAddressHardFail, ClusterCIDR: strings.Join(prefixStrings(c.ClusterCIDR), ","),
		DetectLocalMode: c.DetectLocalMode, DetectLocal: detectEntry(c.DetectLocal),
		NodePortAddresses: prefixStrings(c.NodePortAddresses), NodePortRange: c.NodePortRange.String(), MasqueradeAll: c.MasqueradeAll, MasqueradeBit: number(int(c.MasqueradeBit)),
		NoMasqueradeCIDRs: append([]string{}, prefixStrings(c.NoMasqueradeCIDRs)...),
		MinSyncPeriod:     c.MinSyncPeriod.String(), SyncPeriod: c.SyncPeriod.String(),
		ExternalIPs: c.ExternalIPs, ServiceLimits: c.ServiceLimits.effective(), EndpointCIDRs: append([]string{}, prefixStrings(c.EndpointCIDRs)...),
		Conntrack: conntrackEntry{
			MaxPerCore: number(c.Conntrack.MaxPerCore), Min: number(c.Conntrack.Min), TCPBeLiberal: c.Conntrack.TCPBeLiberal,
			TCPEstablishedTimeout: c.Conntrack.TCPEstablishedTimeout.String(),
			TCPCloseWaitTimeout:   c.Conntrack.TCPCloseWaitTimeout.String(),
			UDPTimeout:            c.Conntrack.UDPTimeout.String(), UDPStreamTimeout: c.Conntrack.UDPStreamTimeout.String(),
		},
		SessionAffinity:  affinityEntry{number(c.SessionAffinity.ReservedClients), number(c.SessionAffinity.SharedClients)},
		IPVS:             c.IPVS.effective(),
		ClientConnection: clientEntry(c.ClientConnection),
		OOMScoreAdj:      number(c.OOMScoreAdj), Logging: loggingEntry{c.Logging.Format, int32(c.Logging.Verbosity)},
		EnableProfiling: c.EnableProfiling, MetricsBindAddress: &c.MetricsBindAddress, HealthzBindAddress: &c.HealthzBindAddress, StatusPageAddress: &c.StatusPageBindAddress, StateAddress: &c.StateBindAddress,
		PluginCacheDir: c.PluginCacheDir, PluginLimits: limitsEntry{number(c.PluginLimits.CPUPercent), number(c.PluginLimits.MemoryMiB), number(c.PluginLimits.CompileSeconds)},
		PluginImages: imagesEntry{number(c.PluginImages.CacheMiB), c.PluginImages.DockerConfig, c.PluginImages.CAFile, append([]string{}, c.PluginImages.PlainHTTP...)},
		Plugins:      []pluginEntry{}, Policies: []policyEntry{}, Bindings: []bindingEntry{}, Allow: []allowEntry{},
		DefaultPolicy: c.DefaultPolicy,
	}
	c.effectiveSignals(f)
	if c.BindAddress.IsValid() {
		f.BindAddress = c.BindAddress.String()
	}
	if c.NodePortAddresses == nil || c.NodePortPrimary {
		f.NodePortAddresses = append([]string{"primary"}, f.NodePortAddresses...)
	}
	for _, p := range c.Plugins {
		e := pluginEntry{Name: p.Name, File: p.File, Image: p.Image.String(), Digest: p.Digest, Isolation: p.Isolation, RepeatOneIn: number(p.RepeatOneIn)}
		if p.VerifyKey != "" {
			e.Verify = &verifyEntry{p.VerifyKey}
		}
		if p.Limits.MemoryMiB != 0 {
			e.Limits.MemoryMiB = number(p.Limits.MemoryMiB)
		}
		if p.Limits.Instances != 0 {
			e.Limits.Instances = number(p.Limits.Instances)
		}
		f.Plugins = append(f.Plugins, e)
	}
	for _, p := range c.Policies {
		e := policyEntry{Name: p.Name, FailurePolicy: p.OnFailure.String(), IgnoreHints: p.IgnoreHints,
			MaxShed: number(p.MaxShedPercentPerSecond)}
		if g := p.Guard; g.FailedPercent != 0 {
			e.Guard = &guardEntry{number(g.FailedPercent), g.Window.String()}
		}
		if p.Panic.Below != 0 {
			e.Panic = &panicEntry{number(p.Panic.Below), p.Panic.Hold.String()}
		}
		e.Plugins, e.Shadow = effectiveSteps(p.Steps), effectiveSteps(p.Shadow)
		f.Policies = append(f.Policies, e)
	}
	for _, b := range c.Bindings {
		f.Bindings = append(f.Bindings, effectiveBinding(b))
	}
	for _, a := range c.Allow {
		f.Allow = append(f.Allow, allowEntry(a))
	}
	return f
}

func effectiveSteps(steps []policy.Step) (out []stepEntry) {
	for _, s := range steps {
		name, _ := policy.CutShadow(s.Plugin)
		out = append(out, stepEntry{name, json.RawMessage(cmp.Or(s.Settings, "null")), append([]string{}, s.ServiceSettings...)})
	}
	return out
}

func effectiveBinding(b policy.Binding) bindingEntry {
	e := bindingEntry{Namespaces: b.Namespaces, Selector: effectiveSelector(b.Selector), Nodes: effectiveNodes(b.Nodes), Policy: b.Policy}
	for name, text := range b.Settings {
		if e.Settings == nil {
			e.Settings = map[string]json.RawMessage{}
		}
		e.Settings[name] = json.RawMessage(text)
	}
	return e
}

func prefixStrings(list []netip.Prefix) []string {
	out := []string{}
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}
