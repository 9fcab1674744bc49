package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// The DaemonSet of deploy/kustomize: what its Pods have of files, and whom their probes ask.
const (
	daemonSetConfig  = "/etc/sluice" // the ConfigMap, at which the configuration file is
	daemonSetState   = "/run/sluice" // of the host; all that may be written
	daemonSetPlugins = "/plugins"    // in the image
	daemonSetModules = "/modules"    // of the components modules-configmap and modules-image
	daemonSetProbe   = "127.0.0.1:10256"
)

// Values of the DaemonSet's Pods.
const (
	InPodDir         = daemonSetConfig                                 // of the configuration file, to resolve relative paths against
	InPodPluginCache = "/run/sluice/plugins"                           // of the host
	InPodOOMScoreAdj = -997                                            // the kubelet's value for system-node-critical Pods; a lower one requires a capability
	InPodSecrets     = "/var/run/secrets/kubernetes.io/serviceaccount" // token and CA of the Pod's service account
)

// InPod returns what cannot work in a Pod of the DaemonSet in deploy/kustomize, and what is probably a mistake there.
func (c *Config) InPod() (problems, warnings []string) {
	fail := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	exists := func(path, file string) {
		if file == "" || within(file, daemonSetConfig) || within(file, daemonSetState) || within(file, daemonSetPlugins) || within(file, daemonSetModules) || within(file, InPodSecrets) {
			return
		}
		fail("%s: %s is not in the Pod: the DaemonSet mounts %s (the ConfigMap) and %s (of the host), and the image has %s", path, file,
			daemonSetConfig, daemonSetState, daemonSetPlugins)
	}
	exists("clientConnection.kubeconfig", c.ClientConnection.Kubeconfig)
	exists("pluginImages.dockerConfig", c.PluginImages.DockerConfig)
	exists("pluginImages.caFile", c.PluginImages.CAFile)
	for i := range c.Plugins {
		exists(fmt.Sprintf("plugins[%d].file", i), c.Plugins[i].File)
		exists(fmt.Sprintf("plugins[%d].verify.key", i), c.Plugins[i].Verify.Key)
	}
	if c.ClientConnection.Server == "" && c.ClientConnection.Kubeconfig == "" {
		warn("clientConnection.server: empty: sluice starts only where the Service kubernetes already works without it")
	}
	switch {
	case len(c.Plugins) == 0:
	case c.PluginCacheDir == "":
		warn("pluginCacheDir: empty: the Pod's root filesystem is read-only, so plugins that are not bundled are compiled, and modules pulled, at each start; set %s", InPodPluginCache)
	case !within(c.PluginCacheDir, daemonSetState):
		fail("pluginCacheDir: %s: a Pod of the DaemonSet may write to %s only", c.PluginCacheDir, daemonSetState)
	}
	if c.HostnameOverride != "" {
		warn("hostnameOverride: %s: the DaemonSet sets --node to the name of its Pod's node, which takes precedence", c.HostnameOverride)
	}
	if c.OOMScoreAdj < InPodOOMScoreAdj && c.OOMScoreAdjSet {
		warn("oomScoreAdj: %d: lower than the kubelet's value for system-node-critical Pods, %d, which requires a capability that the Pod does not have", c.OOMScoreAdj, InPodOOMScoreAdj)
	}
	if probe := netip.MustParseAddrPort(daemonSetProbe); !serves(c.HealthzBindAddress, probe) {
		fail("healthzBindAddress: %q does not serve %s, which the DaemonSet's probes ask: the Pod never becomes ready", c.HealthzBindAddress, probe)
	}
	return problems, warnings
}

// within reports whether a file is in a folder.
func within(file, folder string) bool {
	rest, ok := strings.CutPrefix(filepath.Clean(file), folder)
	return ok && (rest == "" || rest[0] == '/')
}

// serves reports whether a server at a listen address can be asked at another address.
func serves(listen string, at netip.AddrPort) bool {
	l, err := netip.ParseAddrPort(listen)
	return err == nil && l.Port() == at.Port() && (l.Addr() == at.Addr() || l.Addr().IsUnspecified() && (l.Addr().Is6() || at.Addr().Is4()))
}
