package config

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
)

// PodInterfaces returns the input interfaces of Pods; a trailing * matches any suffix.
func (c *Config) PodInterfaces() []string {
	switch c.DetectLocalMode {
	case BridgeInterface:
		return []string{c.DetectLocal.BridgeInterface}
	case InterfaceNamePrefix:
		return []string{c.DetectLocal.InterfaceNamePrefix + "*"}
	}
	return nil
}

// PodSources returns the configured Pod ranges. It does not include the Node's podCIDRs.
func (c *Config) PodSources() []netip.Prefix {
	if c.DetectLocalMode == ClusterCIDR {
		return c.ClusterCIDR
	}
	return nil
}

// MissingFiles returns a message for each configured file that does not exist on this host. It may exist on another.
func (c *Config) MissingFiles() []string {
	var out []string
	if file := c.ClientConnection.Kubeconfig; file != "" {
		if _, err := os.Stat(file); err != nil {
			out = append(out, fmt.Sprintf("clientConnection.kubeconfig: %v: sluice run requires it", err))
		}
	}
	for i := range c.Plugins {
		if file := c.Plugins[i].Verify.Key; file != "" {
			if _, err := os.Stat(file); err != nil {
				out = append(out, fmt.Sprintf("plugins[%d].verify.key: %v: the plugin does not load without it", i, err))
			}
		}
	}
	if len(c.Images()) > 0 {
		for _, f := range [][2]string{{"dockerConfig", c.PluginImages.DockerConfig}, {"caFile", c.PluginImages.CAFile}} {
			if _, err := os.Stat(f[1]); f[1] != "" && err != nil {
				out = append(out, fmt.Sprintf("pluginImages.%s: %v: pulling images requires it", f[0], err))
			}
		}
	}
	return out
}

// Warnings returns messages about valid settings that are probably mistakes.
func (c *Config) Warnings() []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if c.DetectLocalMode == ClusterCIDR && len(c.ClusterCIDR) == 0 {
		warn("clusterCIDR: empty, so no source is treated as a Pod: connections from outside the cluster to ClusterIPs are not " +
			"masqueraded, and with externalTrafficPolicy Local Pods are limited to local endpoints like external clients")
	}
	if c.DetectLocalMode != ClusterCIDR && len(c.ClusterCIDR) > 0 {
		warn("clusterCIDR: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != BridgeInterface && c.DetectLocal.BridgeInterface != "" {
		warn("detectLocal.bridgeInterface: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != InterfaceNamePrefix && c.DetectLocal.InterfaceNamePrefix != "" {
		warn("detectLocal.interfaceNamePrefix: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.Conntrack.MaxPerCore == 0 && c.Conntrack.Min != 0 && c.Conntrack.Min != Default().Conntrack.Min {
		warn("conntrack.min: ignored with conntrack.maxPerCore 0, which keeps the kernel's limit")
	}
	if c.BindAddress.IsLoopback() {
		warn("bindAddress: %s is a loopback address, which never serves NodePorts", c.BindAddress)
	}
	return slices.Concat(out, c.RefusedRanges(), c.portWarnings(), c.schedulerWarnings(), c.policyWarnings())
}
