// Package config reads the configuration file of sluice run, a SluiceConfiguration of sluice.dev/v1alpha1. Fields that
// mean what a field of KubeProxyConfiguration means have its name.
//
// Reading is strict: every mistake is reported, all at once, each with the path of its field.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// What the file says it is.
const (
	APIVersion = "sluice.dev/v1alpha1"
	Kind       = "SluiceConfiguration"
)

// Config is a configuration that has been checked: every name in it refers to something.
type Config struct {
	HostnameOverride string // name of this node; "" for the host's own
	Mode             string
	// BindAddress is this node's primary address of its family; not valid: the Node's first one.
	BindAddress netip.Addr
	// BindAddressHardFail ends sluice when it cannot listen where it is told to.
	BindAddressHardFail bool
	// DetectLocalMode says how a source is told to be a Pod; the other fields of detection hold in their mode only.
	DetectLocalMode string
	DetectLocal     DetectLocal
	// ClusterCIDR are the sources that count as Pods, at most one of each family; without one of a family, none does.
	ClusterCIDR []netip.Prefix
	// NodePortAddresses select this node's addresses that NodePorts answer on; nil is the primary address of each
	// family. A family without a prefix has all its addresses.
	NodePortAddresses  []netip.Prefix
	MasqueradeAll      bool
	MasqueradeBit      uint8         // of the packet mark, 0–31
	MinSyncPeriod      time.Duration // the least time between two writes; 0: at once
	SyncPeriod         time.Duration // how often what failed is tried again, and drift is looked for
	Conntrack          Conntrack
	IPVS               IPVS
	OOMScoreAdj        int // of the process, -1000–1000
	ClientConnection   ClientConnection
	Logging            Logging
	EnableProfiling    bool
	MetricsBindAddress string
	HealthzBindAddress string
	PluginCacheDir     string // for compiled plugins; "": in the user's own cache folder, where there is one
	Plugins            []Plugin
	Policies           []policy.Policy
	Bindings           []policy.Binding
	DefaultPolicy      string // "": the default rules
}

// Plugin is a module that policies may use.
type Plugin struct {
	Name   string
	File   string // absolute, or relative to the working directory
	Digest string // sha256:… of the file's bytes; "" takes any
	Limits Limits
}

// Limits bounds a plugin more tightly than the host does by itself.
type Limits struct {
	MemoryMiB int // 0: the host's own limit
}

// ClientConnection says how to reach the API server. Empty fields: as a Pod of the cluster does.
type ClientConnection struct {
	Kubeconfig string // a file, absolute or relative to the working directory
	Server     string // URL, in the place of the kubeconfig's or the Pod's
}

// Default is the configuration of an empty file: kube-proxy's defaults in nftables mode, and no policy.
func Default() *Config {
	return &Config{
		Mode:               ModeNFTables,
		DetectLocalMode:    ClusterCIDR,
		MasqueradeBit:      14,
		SyncPeriod:         30 * time.Second,
		Conntrack:          defaultConntrack(),
		IPVS:               defaultIPVS(),
		OOMScoreAdj:        -999,
		Logging:            Logging{Format: LogText},
		MetricsBindAddress: "127.0.0.1:10249",
		HealthzBindAddress: "0.0.0.0:10256",
	}
}

//go:embed defaults.yaml
var defaults string

// DefaultsYAML is the configuration file that says nothing but the defaults, each with a comment.
func DefaultsYAML() string { return defaults }

// PrefixErrors puts what an error is about before each of the errors that it joins, so that every line can stand alone.
func PrefixErrors(about string, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", about, err)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, PrefixErrors(about, e))
	}
	return errors.Join(errs...)
}

// maxFile bounds a configuration file.
const maxFile = 8 << 20

// Load reads a file. Paths in it are relative to its folder.
func Load(path string) (*Config, error) {
	b, err := strictyaml.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c, err := Parse(b, filepath.Dir(path))
	if err != nil {
		return nil, PrefixErrors("configuration "+path, err)
	}
	return c, nil
}

// MasqueradeMark is the packet mark of MasqueradeBit.
func (c *Config) MasqueradeMark() uint32 { return 1 << (c.MasqueradeBit & 31) }

// NodePortPrefixes are NodePortAddresses, as the plan takes them.
func (c *Config) NodePortPrefixes() []netip.Prefix { return c.NodePortAddresses }

// PolicySet is what decides which policy a Service has. Each call makes a new one.
func (c *Config) PolicySet() *policy.Set {
	set := &policy.Set{Policies: map[string]*policy.Policy{}, Bindings: c.Bindings, Default: c.DefaultPolicy}
	for _, p := range c.Policies {
		set.Policies[p.Name] = &p
	}
	return set
}

// Steps are the distinct steps of policies that use a plugin, in their order.
func (c *Config) Steps(plugin string) []policy.Step {
	var out []policy.Step
	for _, p := range c.Policies {
		for _, s := range p.Steps {
			if s.Plugin == plugin && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// Equal tells whether two configurations say the same.
func (c *Config) Equal(d *Config) bool { return reflect.DeepEqual(c, d) }

// CheckReload tells whether c can take the place of old in a running process: the error names each field that needs a
// restart.
func (c *Config) CheckReload(old *Config) error {
	var errs []error
	fixed := func(field string, is, was any) {
		if is != was {
			errs = append(errs, fmt.Errorf("%s: %v instead of %v needs a restart", field, is, was))
		}
	}
	fixed("hostnameOverride", c.HostnameOverride, old.HostnameOverride)
	fixed("bindAddressHardFail", c.BindAddressHardFail, old.BindAddressHardFail)
	fixed("clientConnection", c.ClientConnection, old.ClientConnection)
	fixed("conntrack", c.Conntrack, old.Conntrack)
	fixed("oomScoreAdj", c.OOMScoreAdj, old.OOMScoreAdj)
	fixed("logging", c.Logging, old.Logging)
	fixed("enableProfiling", c.EnableProfiling, old.EnableProfiling)
	fixed("metricsBindAddress", c.MetricsBindAddress, old.MetricsBindAddress)
	fixed("healthzBindAddress", c.HealthzBindAddress, old.HealthzBindAddress)
	fixed("pluginCacheDir", c.PluginCacheDir, old.PluginCacheDir)
	fixed("minSyncPeriod", c.MinSyncPeriod, old.MinSyncPeriod)
	fixed("syncPeriod", c.SyncPeriod, old.SyncPeriod)
	return errors.Join(errs...)
}
