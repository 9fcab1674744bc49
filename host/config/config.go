// Package config parses and validates the configuration file of sluice run, a SluiceConfiguration of sluice.dev/v1alpha1.
// Fields that also exist in KubeProxyConfiguration have the same name and meaning.
//
// Parsing is strict: unknown fields are errors, and all errors are reported together, each with the path of its field.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/imageref"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/safefile"
)

// API version and kind of the file.
const (
	APIVersion = "sluice.dev/v1alpha1"
	Kind       = "SluiceConfiguration"
)

// Config is a valid configuration: every name in it refers to an existing plugin or policy.
type Config struct {
	HostnameOverride string // name of this node; "" means the host name
	Mode             string
	// BindAddress is this node's primary address of its family; the zero value means the Node's first address.
	BindAddress netip.Addr
	// BindAddressHardFail makes sluice exit if a server cannot listen on its address.
	BindAddressHardFail bool
	// DetectLocalMode selects how Pod sources are detected; the fields of the other modes are ignored.
	DetectLocalMode string
	DetectLocal     DetectLocal
	// ClusterCIDR are the Pod ranges, at most one per family; in a family without one, no source is treated as a Pod.
	ClusterCIDR []netip.Prefix
	// NodePortAddresses select this node's addresses that serve NodePorts; nil means the primary address of each family.
	// A family without a prefix uses all its addresses, or the primary one with NodePortPrimary. Prefixes of loopback addresses
	// make sluice listen there (KEP-6032).
	NodePortAddresses []netip.Prefix
	NodePortPrimary   bool      // the primary addresses too; false if NodePortAddresses is nil
	NodePortRange     PortRange // the API server's --service-node-port-range
	ExternalIPs       string    // Allow, Ignore or "", see defaults.yaml
	MasqueradeAll     bool
	MasqueradeBit     uint8 // of the packet mark, 0–31
	// NoMasqueradeCIDRs are endpoints' addresses to which connections keep their source (KEP-6246).
	NoMasqueradeCIDRs []netip.Prefix
	ServiceLimits     ServiceLimits
	// EndpointCIDRs are accepted as endpoints although they contain addresses that are refused otherwise.
	EndpointCIDRs      []netip.Prefix
	MinSyncPeriod      time.Duration // minimum time between two updates; 0: update immediately
	SyncPeriod         time.Duration // interval of checks for external changes; an update pending for twice as long is unhealthy
	Conntrack          Conntrack
	SessionAffinity    SessionAffinity
	IPVS               IPVS
	OOMScoreAdj        int  // of the process, -1000–1000
	OOMScoreAdjSet     bool // in the file; ignored by Equal
	ClientConnection   ClientConnection
	Logging            Logging
	EnableProfiling    bool
	MetricsBindAddress string
	HealthzBindAddress string
	// StatusPageBindAddress is the address of the status page; "": there is none.
	StatusPageBindAddress string
	// StateBindAddress is the loopback address of the state API with authentication; "": there is none.
	StateBindAddress string
	PluginCacheDir   string // of compiled plugins; "" means the user's cache directory, if there is one
	PluginLimits     PluginLimits
	PluginImages     PluginImages
	Signals          Signals
	Metrics          Metrics
	Plugins          []Plugin
	Policies         []policy.Policy
	Bindings         []policy.Binding
	Allow            []policy.Allow // what the annotations of Services may choose
	DefaultPolicy    string         // "" means kube-proxy's rules
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ From, To uint16 }

// String returns the range as in the file.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.From, r.To) }

// ParsePortRange parses a range such as 30000-32767.
func ParsePortRange(s string) (PortRange, error) {
	from, to, ok := strings.Cut(s, "-")
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if !ok || err != nil || err2 != nil || a == 0 || a > b {
		return PortRange{}, fmt.Errorf("%q is not a range of ports such as %s", s, DefaultNodePortRange())
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// DefaultNodePortRange returns the API server's default.
func DefaultNodePortRange() PortRange { return PortRange{30000, 32767} }

// Plugin is a WebAssembly module that policies can use.
type Plugin struct {
	Name   string
	File   string       // absolute, or relative to the working directory; "": Image
	Image  imageref.Ref // in a registry; the zero value: File
	Digest string       // sha256:… of the module; "" accepts any
	// VerifyKey is a file with the public key that must have signed the image; absolute or relative to the working directory; "": none.
	VerifyKey string
	Limits    Limits
	// Isolation selects which Services share an instance.
	Isolation string
	// RepeatOneIn of so many decisions is repeated in a second instance, to find out whether they depend on the request only; 0: none.
	RepeatOneIn int
}

// Values of Plugin.Isolation.
const (
	IsolateNone      = "Shared"    // all Services share an instance
	IsolateNamespace = "Namespace" // those of each namespace
)

// Limits are limits of a plugin below those of the host.
type Limits struct {
	MemoryMiB int // of an instance; 0 means the host's limit
	Instances int // at the same time; 0 means the host's limit
}

// PluginLimits are limits of all plugins together.
type PluginLimits struct {
	CPUPercent     int // of one core in any minute, 0–1000; 0 means no limit
	MemoryMiB      int // host memory: compiled code, tables, guest memory, and that of a compiling process
	CompileSeconds int // CPU time for compiling a module, 1–600
}

// PluginImages is how modules are pulled from registries.
type PluginImages struct {
	CacheMiB     int      // of modules on disk
	DockerConfig string   // file with credentials; absolute or relative to the working directory; "": none
	CAFile       string   // likewise, certificates of authorities beside the system's; "": none
	PlainHTTP    []string // registries that are asked without TLS
}

// ClientConnection is the connection to the API server. Empty fields mean the Pod's in-cluster configuration.
type ClientConnection struct {
	Kubeconfig string // file; absolute or relative to the working directory
	Server     string // URL that overrides the kubeconfig's or the Pod's
}

// Default returns the configuration of a file without optional fields: kube-proxy's defaults in nftables mode, no policies.
func Default() *Config {
	return &Config{
		Mode:               ModeNFTables,
		DetectLocalMode:    ClusterCIDR,
		MasqueradeBit:      14,
		NodePortRange:      DefaultNodePortRange(),
		SyncPeriod:         30 * time.Second,
		ServiceLimits:      defaultServiceLimits(),
		Conntrack:          defaultConntrack(),
		SessionAffinity:    defaultSessionAffinity(),
		IPVS:               defaultIPVS(),
		OOMScoreAdj:        -999,
		Logging:            Logging{Format: LogText},
		MetricsBindAddress: "127.0.0.1:10249",
		HealthzBindAddress: "0.0.0.0:10256",
		PluginLimits:       PluginLimits{CPUPercent: 10, MemoryMiB: 256, CompileSeconds: 30},
		PluginImages:       PluginImages{CacheMiB: 64},
		Signals:            defaultSignals(),
		Metrics:            defaultMetrics(),
	}
}

//go:embed defaults.yaml
var defaults string

// DefaultsYAML returns a configuration file with every field at its default, with comments.
func DefaultsYAML() string { return defaults }

// PrefixErrors adds a prefix to err, or to each error that it joins, so that every line is complete.
func PrefixErrors(prefix string, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s: %w", prefix, err)
	}
	var errs []error
	for _, e := range joined.Unwrap() {
		errs = append(errs, PrefixErrors(prefix, e))
	}
	return errors.Join(errs...)
}

// maxFile is the maximum size of a configuration file in bytes.
const maxFile = 8 << 20

// Read reads the text of a file.
func Read(path string) ([]byte, error) {
	b, err := safefile.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return b, nil
}

// Load reads a file. Relative paths in it are resolved against its directory.
func Load(path string) (*Config, error) {
	b, err := Read(path)
	if err != nil {
		return nil, err
	}
	c, err := Parse(b, filepath.Dir(path))
	if err != nil {
		return nil, PrefixErrors("configuration "+path, err)
	}
	return c, nil
}

// MasqueradeMark returns the packet mark with MasqueradeBit set.
func (c *Config) MasqueradeMark() uint32 { return 1 << (c.MasqueradeBit & 31) }

// NodePortPrefixes returns NodePortAddresses in the form of the planner's settings.
func (c *Config) NodePortPrefixes() []netip.Prefix { return c.NodePortAddresses }

// PolicySet returns a new policy set, which selects the policy of each Service.
func (c *Config) PolicySet() *policy.Set {
	set := &policy.Set{Policies: map[string]*policy.Policy{}, Bindings: slices.Clone(c.Bindings), Allow: c.Allow, Default: c.DefaultPolicy}
	for _, p := range c.Policies {
		set.Policies[p.Name] = &p
	}
	for i := range set.Bindings {
		if b := &set.Bindings[i]; len(b.Settings) > 0 {
			b.Applied, _ = set.Policies[b.Policy].WithSettings(b.Settings) // parse has checked it
		}
	}
	return set
}

// PluginSettings are settings of a plugin, "" for none, and the first field of the configuration that has them.
type PluginSettings struct{ Text, Field string }

// SettingsOf returns the distinct settings of a plugin, those of policies before those of bindings; nil if no policy uses it. In shadows a
// plugin has another name, see policy.ShadowPlugin. Services can have other settings, see policy.Step.
func (c *Config) SettingsOf(plugin string) []PluginSettings {
	var out []PluginSettings
	add := func(p *policy.Policy, field func(step int) string) {
		i := -1
		for s := range p.All() {
			i++
			if s.Plugin == plugin && !slices.ContainsFunc(out, func(o PluginSettings) bool { return o.Text == s.Settings }) {
				out = append(out, PluginSettings{s.Settings, field(i)})
			}
		}
	}
	for i := range c.Policies {
		add(&c.Policies[i], func(step int) string {
			if n := len(c.Policies[i].Steps); step >= n {
				return fmt.Sprintf("policies[%d].shadow[%d].settings", i, step-n)
			}
			return fmt.Sprintf("policies[%d].plugins[%d].settings", i, step)
		})
	}
	for i, b := range c.PolicySet().Bindings {
		if b.Applied != nil {
			name, _ := policy.CutShadow(plugin)
			add(b.Applied, func(int) string { return fmt.Sprintf("bindings[%d].settings[%s]", i, name) })
		}
	}
	return out
}

// Equal reports whether two configurations are equal.
func (c *Config) Equal(d *Config) bool {
	same := *c
	same.OOMScoreAdjSet = d.OOMScoreAdjSet
	return reflect.DeepEqual(&same, d)
}

// RestartError names fields whose change requires a restart. The other fields of the configuration can be in force.
type RestartError struct{ Fields []string }

// Error implements error.
func (e *RestartError) Error() string { return strings.Join(e.Fields, "\n") }

// CheckReload returns an error if c cannot replace old without a restart. The error names each field that needs one.
func (c *Config) CheckReload(old *Config) error {
	_, err := c.WithFixed(old)
	return err
}

// WithFixed returns c with the fields of old that a reload does not change, and a *RestartError if that makes a difference.
func (c *Config) WithFixed(old *Config) (*Config, error) {
	out, e := *c, &RestartError{}
	keep(e, "hostnameOverride", &out.HostnameOverride, old.HostnameOverride)
	keep(e, "bindAddressHardFail", &out.BindAddressHardFail, old.BindAddressHardFail)
	keep(e, "nodePortRange", &out.NodePortRange, old.NodePortRange)
	keep(e, "clientConnection", &out.ClientConnection, old.ClientConnection)
	keep(e, "conntrack", &out.Conntrack, old.Conntrack)
	keep(e, "oomScoreAdj", &out.OOMScoreAdj, old.OOMScoreAdj)
	keep(e, "logging.format", &out.Logging.Format, old.Logging.Format)
	keep(e, "enableProfiling", &out.EnableProfiling, old.EnableProfiling)
	keep(e, "metricsBindAddress", &out.MetricsBindAddress, old.MetricsBindAddress)
	keep(e, "healthzBindAddress", &out.HealthzBindAddress, old.HealthzBindAddress)
	keep(e, "statusPageBindAddress", &out.StatusPageBindAddress, old.StatusPageBindAddress)
	keep(e, "stateBindAddress", &out.StateBindAddress, old.StateBindAddress)
	keep(e, "pluginCacheDir", &out.PluginCacheDir, old.PluginCacheDir)
	keep(e, "pluginLimits.memoryMiB", &out.PluginLimits.MemoryMiB, old.PluginLimits.MemoryMiB)
	keep(e, "pluginLimits.compileSeconds", &out.PluginLimits.CompileSeconds, old.PluginLimits.CompileSeconds)
	keep(e, "signals", &out.Signals, old.Signals)
	keep(e, "minSyncPeriod", &out.MinSyncPeriod, old.MinSyncPeriod)
	keep(e, "syncPeriod", &out.SyncPeriod, old.SyncPeriod)
	if e.Fields == nil {
		return &out, nil
	}
	return &out, e
}

// keep sets a field to its old value, and names it if that is another one.
func keep[T comparable](e *RestartError, field string, value *T, old T) {
	if *value != old {
		e.Fields = append(e.Fields, fmt.Sprintf("%s: change from %v to %v requires a restart", field, old, *value))
		*value = old
	}
}
