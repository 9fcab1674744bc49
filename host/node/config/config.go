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
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// API version and kind of the file.
const (
	APIVersion = "sluice.dev/v1alpha1"
	Kind       = "SluiceConfiguration"
)

// KubeProxyKind is the kind of kube-proxy's configuration file, which package migrate converts.
const KubeProxyKind = "KubeProxyConfiguration"

// Config is a valid configuration in the structure of its file: every name in it refers to an existing plugin or policy.
// defaults.yaml says what the fields mean. Their tags are all there is to say about most of them:
//
//	default   the value of a field that is absent or "", unless the tag empty is set: then "" is a value
//	required  the field must exist; see strictyaml.DecodeForm
//	min, max  bounds of a number or duration
//	values    the texts that are allowed
//	check     an entry of checks; with a question mark, the text may be empty
//	restart   a change of the field, or of a field in it, takes effect with a restart
type Config struct {
	HostnameOverride    string `json:"hostnameOverride" check:"name?" restart:"true"` // "" means the host name
	Mode                string `json:"mode" default:"nftables"`
	BindAddressHardFail bool   `json:"bindAddressHardFail" restart:"true"`
	// DetectLocalMode selects how Pod sources are detected; the fields of the other modes are ignored.
	DetectLocalMode string      `json:"detectLocalMode" default:"ClusterCIDR" values:"ClusterCIDR,NodeCIDR,BridgeInterface,InterfaceNamePrefix"`
	DetectLocal     DetectLocal `json:"detectLocal"`
	// ClusterCIDR are the Pod ranges, at most one per family; in a family without one, no source is treated as a Pod.
	ClusterCIDR        ClusterRanges `json:"clusterCIDR"`
	NodePortAddresses  NodePorts     `json:"nodePortAddresses" default:"[\"primary\"]"`
	NodePortRange      PortRange     `json:"nodePortRange" default:"30000-32767" restart:"true"` // the API server's --service-node-port-range
	MasqueradeBit      int           `json:"masqueradeBit" default:"14" min:"0" max:"31"`        // of the packet mark
	planner.Planning                 // the rest of what the planner needs
	MinSyncPeriod      time.Duration `json:"minSyncPeriod" min:"0s" restart:"true"`                        // between two updates; 0: update immediately
	SyncPeriod         time.Duration `json:"syncPeriod" default:"30s" min:"1s" max:"8760h" restart:"true"` // multiples of it are durations too
	Conntrack          Conntrack     `json:"conntrack" restart:"true"`
	SessionAffinity    Affinity      `json:"sessionAffinity"`
	IPVS               IPVS          `json:"ipvs"`
	OOMScoreAdj        int           `json:"oomScoreAdj" default:"-999" min:"-1000" max:"1000" restart:"true"`
	OOMScoreAdjSet     bool          `json:"-"` // in the file; ignored by Equal
	ClientConnection   Client        `json:"clientConnection" restart:"true"`
	Logging            Logging       `json:"logging"`
	EnableProfiling    bool          `json:"enableProfiling" restart:"true"`
	MetricsBindAddress string        `json:"metricsBindAddress" default:"127.0.0.1:10249" empty:"true" check:"listen?" restart:"true"`
	HealthzBindAddress string        `json:"healthzBindAddress" default:"0.0.0.0:10256" empty:"true" check:"listen?" restart:"true"`
	// StatusPageBindAddress is the address of the status page; "": there is none.
	StatusPageBindAddress string `json:"statusPageBindAddress" check:"listen?" restart:"true"`
	// StateBindAddress is the loopback address of the state API with authentication; "": there is none.
	StateBindAddress string       `json:"stateBindAddress" check:"listen?" restart:"true"`
	PluginCacheDir   string       `json:"pluginCacheDir" check:"file?" restart:"true"` // "" means the user's cache directory, if there is one
	PluginDir        string       `json:"pluginDir" default:"/plugins" check:"file"`   // of the bundled plugins, for presets
	PluginLimits     PluginLimits `json:"pluginLimits"`
	PluginImages     PluginImages `json:"pluginImages"`
	Signals          Signals      `json:"signals" restart:"true"`
	Metrics          Metrics      `json:"metrics"`
	Plugins          []Plugin     `json:"plugins"`
	Policies         []Policy     `json:"policies"`
	Bindings         []Binding    `json:"bindings"`
	Allow            []Allow      `json:"allow"`
	DefaultPolicy    string       `json:"defaultPolicy" check:"policy?"` // "" means kube-proxy's rules

	// Objects is what objects of the cluster add; nil: nothing.
	Objects *ObjectSet `json:"-"`
}

// Modes of detecting Pod sources: by the cluster's range, by the Node's ranges (spec.podCIDRs), by the bridge of the Pods, or
// by the name prefix of their interfaces.
const (
	ClusterCIDR         = "ClusterCIDR"
	NodeCIDR            = "NodeCIDR"
	BridgeInterface     = "BridgeInterface"
	InterfaceNamePrefix = "InterfaceNamePrefix"
)

// DetectLocal identifies the input interfaces of connections from Pods.
type DetectLocal struct {
	BridgeInterface     string `json:"bridgeInterface" check:"interface?"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix" check:"interface?"`
}

// Conntrack contains the conntrack settings made at startup. 0 keeps the kernel's value.
type Conntrack struct {
	MaxPerCore            int           `json:"maxPerCore" default:"32768" min:"0"` // entries per CPU; 0 also disables Min
	Min                   int           `json:"min" default:"131072" min:"0"`       // minimum number of entries
	TCPBeLiberal          bool          `json:"tcpBeLiberal"`
	TCPEstablishedTimeout time.Duration `json:"tcpEstablishedTimeout" default:"24h" min:"0s" max:"kernel"`
	TCPCloseWaitTimeout   time.Duration `json:"tcpCloseWaitTimeout" default:"1h" min:"0s" max:"kernel"`
	UDPTimeout            time.Duration `json:"udpTimeout" min:"0s" max:"kernel"`
	UDPStreamTimeout      time.Duration `json:"udpStreamTimeout" min:"0s" max:"kernel"`
}

// Affinity bounds the clients whose endpoint is recorded, for each IP family. A Service port whose frontends lead
// to different endpoints, because of a traffic policy Local, has twice the room. A client takes about 120 bytes of kernel memory.
type Affinity struct {
	ReservedClients int `json:"reservedClients" default:"8192" min:"1" max:"16777216"` // of a Service port's own, while there are at most 64 Service ports with affinity
	SharedClients   int `json:"sharedClients" default:"262144" min:"1" max:"16777216"` // of all Service ports together, beyond ReservedClients
}

// IPVS configures mode ipvs. Interface, MarkMask and ConnectionMetrics are sluice's, the other fields are kube-proxy's.
type IPVS struct {
	Scheduler    string         `json:"scheduler" default:"wrr" check:"scheduler"` // of Services whose policy does not select another
	StrictARP    bool           `json:"strictARP"`                                 // answer ARP requests only on the interface that has the address
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs"`                              // existing virtual servers with these addresses are never taken over
	Interface    string         `json:"interface" default:"sluice-ipvs0" check:"interface"`
	MarkMask     MarkMask       `json:"markMask" default:"0x1f7f"` // bits of the packet mark that identify pools
	// ConnectionMetrics exports the kernel's statistics of each virtual server. It does not change the data plane.
	ConnectionMetrics bool `json:"connectionMetrics"`
	// IPVS connection timeouts; 0 keeps the kernel's value.
	TCPTimeout    time.Duration `json:"tcpTimeout" min:"0s" max:"kernel"`
	TCPFinTimeout time.Duration `json:"tcpFinTimeout" min:"0s" max:"kernel"`
	UDPTimeout    time.Duration `json:"udpTimeout" min:"0s" max:"kernel"`
}

// Client is the connection to the API server. Empty fields mean the Pod's in-cluster configuration.
type Client struct {
	Kubeconfig string `json:"kubeconfig" check:"file?"`
	Server     string `json:"server" check:"server?"` // URL that overrides the kubeconfig's or the Pod's
}

// Logging configures the log.
type Logging struct {
	Format    string `json:"format" default:"text" values:"text,json" restart:"true"`
	Verbosity int    `json:"verbosity" min:"0"` // 1 or higher: debug level
}

// Log formats.
const (
	LogText = "text"
	LogJSON = "json"
)

// PluginLimits are limits of all plugins together.
type PluginLimits struct {
	CPUPercent  int           `json:"cpuPercent" default:"10" min:"0" max:"1000"`                            // of one core in any minute; 0 means no limit
	MemoryMiB   int           `json:"memoryMiB" default:"256" min:"240" max:"65536" restart:"true"`          // compiling alone may take 208 MiB
	CompileTime time.Duration `json:"compileTime" default:"30s" min:"1s" max:"10m" unit:"1s" restart:"true"` // the maximum is far above what the largest module takes
}

// PluginImages is how modules are pulled from registries.
type PluginImages struct {
	CacheMiB     int      `json:"cacheMiB" default:"64" min:"17" max:"65536"` // of modules on disk; the minimum has room for the largest
	DockerConfig string   `json:"dockerConfig" check:"file?"`                 // file with credentials; "": none
	CAFile       string   `json:"caFile" check:"file?"`                       // certificates of authorities beside the system's; "": none
	PlainHTTP    []string `json:"plainHTTP" check:"registry"`                 // registries that are asked without TLS
}

// Signals configures what plugins are told about connections.
type Signals struct {
	// Period is the time between two readings of the outcomes of connections, and the least between two counts of open ones. An
	// attempt counts as unanswered after a second (outcomes.Grace); with two readings a second that is known half a second later
	// at most.
	Period time.Duration `json:"period" default:"500ms" min:"500ms" max:"1m"`
}

// Metrics configures metrics that cost something.
type Metrics struct {
	// ServiceConnections selects the Services whose connections are counted by outcome.
	ServiceConnections string `json:"serviceConnections" default:"Watched" values:"Watched,All"`
}

// Values of Metrics.ServiceConnections.
const (
	ConnectionsWatched = "Watched" // Services whose policy has a plugin that needs outcomes
	ConnectionsAll     = "All"
)

// Plugin is a WebAssembly module that policies can use.
type Plugin struct {
	Name   string       `json:"name" check:"name"`
	File   string       `json:"file,omitzero" check:"file?"`
	Image  imageref.Ref `json:"image,omitzero"`         // in a registry; the zero value: File
	Digest string       `json:"digest" check:"digest?"` // sha256:… of the module; "" accepts any
	Verify Verify       `json:"verify,omitzero"`
	Limits Limits       `json:"limits"`
	// Isolation selects which Services share an instance.
	Isolation string `json:"isolation" default:"Shared" values:"Shared,Namespace"`
	// RepeatOneIn of so many decisions is repeated in a second instance, to find out whether they depend on the request only; 0:
	// none. The default costs 2 to 3 percent of a plugin's fuel.
	RepeatOneIn int `json:"repeatOneIn" default:"64"`
}

// Verify is a file with the public key that must have signed an image.
type Verify struct {
	Key string `json:"key" required:"a file with a public key" check:"file?"`
}

// Values of Plugin.Isolation.
const (
	IsolateNone      = "Shared"    // all Services share an instance
	IsolateNamespace = "Namespace" // those of each namespace
)

// Limits are limits of a plugin below those of the host.
type Limits struct {
	MemoryMiB int `json:"memoryMiB" default:"64" min:"1" max:"64"`  // of an instance; 0 means the host's limit
	Instances int `json:"instances" default:"16" min:"2" max:"256"` // at the same time; 0 means the host's limit
}

// Default returns the configuration of a file without optional fields: kube-proxy's defaults in nftables mode, no policies.
func Default() *Config {
	c, _ := strictyaml.DecodeForm[Config]([]byte("{}"), form())
	return c
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

// Equal reports whether two configurations are equal.
func (c *Config) Equal(d *Config) bool {
	same := *c
	same.OOMScoreAdjSet = d.OOMScoreAdjSet
	if !slices.Equal(same.objectPolicies(), d.objectPolicies()) {
		return false
	}
	same.Objects = d.Objects
	return reflect.DeepEqual(&same, d)
}
