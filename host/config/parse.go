package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// configFile is the structure of the file. Pointers distinguish absent from empty fields.
type configFile struct {
	APIVersion         string             `json:"apiVersion"`
	Kind               string             `json:"kind"`
	HostnameOverride   string             `json:"hostnameOverride"`
	Mode               string             `json:"mode"`
	BindAddress        string             `json:"bindAddress"`
	BindAddressFail    bool               `json:"bindAddressHardFail"`
	ClusterCIDR        string             `json:"clusterCIDR"`
	DetectLocalMode    string             `json:"detectLocalMode"`
	DetectLocal        detectEntry        `json:"detectLocal"`
	NodePortAddresses  []string           `json:"nodePortAddresses"`
	NodePortRange      string             `json:"nodePortRange"`
	ExternalIPs        string             `json:"externalIPs"`
	MasqueradeAll      bool               `json:"masqueradeAll"`
	MasqueradeBit      *int32             `json:"masqueradeBit"`
	NoMasqueradeCIDRs  []string           `json:"noMasqueradeCIDRs"`
	ServiceLimits      serviceLimitsEntry `json:"serviceLimits"`
	EndpointCIDRs      []string           `json:"endpointCIDRs"`
	MinSyncPeriod      string             `json:"minSyncPeriod"`
	SyncPeriod         string             `json:"syncPeriod"`
	ClientConnection   clientEntry        `json:"clientConnection"`
	Conntrack          conntrackEntry     `json:"conntrack"`
	SessionAffinity    affinityEntry      `json:"sessionAffinity"`
	IPVS               ipvsEntry          `json:"ipvs"`
	OOMScoreAdj        *int32             `json:"oomScoreAdj"`
	Logging            loggingEntry       `json:"logging"`
	EnableProfiling    bool               `json:"enableProfiling"`
	MetricsBindAddress *string            `json:"metricsBindAddress"`
	HealthzBindAddress *string            `json:"healthzBindAddress"`
	StatusPageAddress  *string            `json:"statusPageBindAddress"`
	StateAddress       *string            `json:"stateBindAddress"`
	PluginCacheDir     string             `json:"pluginCacheDir"`
	PluginLimits       limitsEntry        `json:"pluginLimits"`
	PluginImages       imagesEntry        `json:"pluginImages"`
	Signals            signalsEntry       `json:"signals"`
	Metrics            metricsEntry       `json:"metrics"`
	Plugins            []pluginEntry      `json:"plugins"`
	Policies           []policyEntry      `json:"policies"`
	Bindings           []bindingEntry     `json:"bindings"`
	Allow              []allowEntry       `json:"allow"`
	DefaultPolicy      string             `json:"defaultPolicy"`
}

type clientEntry struct {
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
}

type limitsEntry struct {
	CPUPercent     *int32 `json:"cpuPercent"`
	MemoryMiB      *int32 `json:"memoryMiB"`
	CompileSeconds *int32 `json:"compileSeconds"`
}

type imagesEntry struct {
	CacheMiB     *int32   `json:"cacheMiB"`
	DockerConfig string   `json:"dockerConfig"`
	CAFile       string   `json:"caFile"`
	PlainHTTP    []string `json:"plainHTTP"`
}

type pluginEntry struct {
	Name   string       `json:"name"`
	File   string       `json:"file,omitempty"`
	Image  string       `json:"image,omitempty"`
	Digest string       `json:"digest"`
	Verify *verifyEntry `json:"verify,omitempty"`
	Limits struct {
		MemoryMiB *int32 `json:"memoryMiB"`
		Instances *int32 `json:"instances"`
	} `json:"limits"`
	Isolation   string `json:"isolation"`
	RepeatOneIn *int32 `json:"repeatOneIn"`
}

type verifyEntry struct {
	Key string `json:"key"`
}

type policyEntry struct {
	Name          string          `json:"name"`
	Plugins       []stepEntry     `json:"plugins"`
	Shadow        []stepEntry     `json:"shadow"`
	Mode          json.RawMessage `json:"mode,omitempty"` // removed: an error of its own
	FailurePolicy string          `json:"failurePolicy"`
	IgnoreHints   bool            `json:"ignoreHints"`
	Panic         *panicEntry     `json:"panic"`
	Guard         *guardEntry     `json:"guard"`
	MaxShed       *int32          `json:"maxShedPercentPerSecond"`
}

type stepEntry struct {
	Name            string          `json:"name"`
	Settings        json.RawMessage `json:"settings"`
	ServiceSettings []string        `json:"serviceSettings"`
}

type bindingEntry struct {
	Namespaces []string                   `json:"namespaces"`
	Selector   selectorEntry              `json:"selector"`
	Nodes      *nodesEntry                `json:"nodes"`
	Policy     string                     `json:"policy"`
	Settings   map[string]json.RawMessage `json:"settings"`
}

// maxSyncPeriod bounds syncPeriod, and thereby minSyncPeriod: multiples of it are durations too.
const maxSyncPeriod = 365 * 24 * time.Hour

// maxReported is the maximum number of errors that are reported; others are counted.
const maxReported = 100

// Parse parses a configuration in YAML or JSON. Relative paths in it are resolved against dir. The error joins up to 100
// errors: those of unknown and ill-typed fields, then those of values, each in the order of the fields, with their lines.
func Parse(b []byte, dir string) (*Config, error) {
	docs := split(b)
	switch {
	case len(docs) == 0:
		return nil, fmt.Errorf("empty file: apiVersion: %s and kind: %s are required", APIVersion, Kind)
	case len(docs) > 1:
		return nil, fmt.Errorf("line %d: second document: the file must contain one document", docs[1].Line)
	}
	raw, twice, err := docs[0].ToJSON()
	if err = errors.Join(err, twice); err != nil {
		return nil, err
	}
	f, misfits := strictyaml.Decode[configFile](raw)
	if f.Kind == kubeProxyKind {
		return nil, fmt.Errorf("kind: %s is kube-proxy's: convert the file with 'sluice config migrate'", f.Kind)
	}
	p := &parser{dir: dir, misfits: misfits}
	for _, m := range misfits.Reported {
		p.errs = append(p.errs, m)
	}
	p.more = misfits.MoreDropped + misfits.MoreUnknown
	c := p.config(f)
	if over := len(p.errs) - maxReported; over > 0 {
		p.errs, p.more = p.errs[:maxReported], p.more+over
	}
	if len(p.errs) > 0 {
		lines := docs[0].Lines()
		for i, err := range p.errs {
			if e, ok := err.(strictyaml.FieldError); ok { //nolint:errorlint // errorf and Decode wrap nothing
				e.Line = lines(e.Path)
				p.errs[i] = e
			}
		}
	}
	if p.more > 0 {
		p.errs = append(p.errs, fmt.Errorf("and %d more errors in this file", p.more))
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return c, nil
}

// AddLines joins messages that begin with the path of a field of a configuration that is well-formed, with their lines. The error is nil if
// there are none.
func AddLines(b []byte, messages []string) error {
	docs := split(b)
	if len(messages) == 0 || len(docs) == 0 {
		return nil
	}
	lines := docs[0].Lines()
	var errs []error
	for _, m := range messages {
		path, _, _ := strings.Cut(m, ": ")
		errs = append(errs, strictyaml.FieldError{Err: errors.New(m), Line: lines(path)})
	}
	return errors.Join(errs...)
}

func split(b []byte) []strictyaml.Document {
	return strictyaml.SplitYAML(string(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))))
}

type parser struct {
	dir     string
	misfits *strictyaml.FieldErrors
	images  *PluginImages
	errs    []error
	more    int // number of errors not in errs
}

// errorf records an error of a field unless the field already has a decoding error.
func (p *parser) errorf(path, format string, args ...any) {
	switch {
	case p.misfits.Covers(path):
	case len(p.errs) >= maxReported:
		p.more++
	default:
		p.errs = append(p.errs, strictyaml.FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	}
}

func (p *parser) config(f *configFile) *Config {
	c := Default()
	if f.APIVersion != APIVersion {
		p.errorf("apiVersion", "%q: must be %s", f.APIVersion, APIVersion)
	}
	if f.Kind != Kind {
		p.errorf("kind", "%q: must be %s", f.Kind, Kind)
	}
	if c.HostnameOverride = f.HostnameOverride; c.HostnameOverride != "" {
		p.name("hostnameOverride", c.HostnameOverride)
	}
	if f.Mode != "" {
		c.Mode = f.Mode
		if err := CheckMode(f.Mode); err != nil {
			p.errorf("mode", "%w", err)
		}
	}
	p.sessionAffinity(f, c)
	p.node(f, c)
	p.client(f, c)
	c.ClusterCIDR = p.clusterCIDR(f.ClusterCIDR)
	c.NodePortAddresses, c.NodePortPrimary = p.nodePortAddresses(f.NodePortAddresses)
	c.NodePortRange = p.nodePortRange(f.NodePortRange)
	if c.ExternalIPs = f.ExternalIPs; f.ExternalIPs != "" && f.ExternalIPs != Allow && f.ExternalIPs != Ignore {
		p.errorf("externalIPs", "%q: must be %s or %s", f.ExternalIPs, Allow, Ignore)
	}
	c.MasqueradeAll = f.MasqueradeAll
	if bit := f.MasqueradeBit; bit != nil {
		if *bit < 0 || *bit > 31 {
			p.errorf("masqueradeBit", "%d is not between 0 and 31", *bit)
		} else {
			c.MasqueradeBit = uint8(*bit)
		}
	}
	p.ipvs(f, c)
	p.duration("minSyncPeriod", f.MinSyncPeriod, 0, &c.MinSyncPeriod)
	p.duration("syncPeriod", f.SyncPeriod, time.Second, &c.SyncPeriod)
	if c.SyncPeriod > maxSyncPeriod {
		p.errorf("syncPeriod", "%s is more than %s", c.SyncPeriod, maxSyncPeriod)
	}
	if c.MinSyncPeriod > c.SyncPeriod {
		p.errorf("minSyncPeriod", "%s is greater than syncPeriod, %s", c.MinSyncPeriod, c.SyncPeriod)
	}
	c.EnableProfiling = f.EnableProfiling
	p.listen("metricsBindAddress", f.MetricsBindAddress, &c.MetricsBindAddress)
	p.listen("healthzBindAddress", f.HealthzBindAddress, &c.HealthzBindAddress)
	p.listen("statusPageBindAddress", f.StatusPageAddress, &c.StatusPageBindAddress)
	p.listen("stateBindAddress", f.StateAddress, &c.StateBindAddress)
	if at, err := netip.ParseAddrPort(c.StateBindAddress); err == nil && !at.Addr().Unmap().IsLoopback() {
		p.errorf("stateBindAddress", "%s is not a loopback address: kubectl sluice reaches it through the API server, and tokens would cross the network in plain text", at)
	}
	if f.PluginCacheDir != "" {
		c.PluginCacheDir = p.path(f.PluginCacheDir)
	}
	if cpu := f.PluginLimits.CPUPercent; cpu != nil {
		if *cpu < 0 || *cpu > maxCPUPercent {
			p.errorf("pluginLimits.cpuPercent", "%d is not between 0 and %d", *cpu, maxCPUPercent)
		}
		c.PluginLimits.CPUPercent = int(*cpu)
	}
	if memory := f.PluginLimits.MemoryMiB; memory != nil {
		if *memory < minPluginMemoryMiB || *memory > maxPluginMemoryMiB {
			p.errorf("pluginLimits.memoryMiB", "%d is not between %d and %d", *memory, minPluginMemoryMiB, maxPluginMemoryMiB)
		}
		c.PluginLimits.MemoryMiB = int(*memory)
	}
	if seconds := f.PluginLimits.CompileSeconds; seconds != nil {
		if *seconds < 1 || *seconds > maxCompileSeconds {
			p.errorf("pluginLimits.compileSeconds", "%d is not between 1 and %d", *seconds, maxCompileSeconds)
		}
		c.PluginLimits.CompileSeconds = int(*seconds)
	}
	p.pluginImages(&f.PluginImages, &c.PluginImages)
	p.images = &c.PluginImages
	p.signals(f, c)
	c.Plugins = p.plugins(f.Plugins)
	c.Policies = p.policies(f.Policies, c.Plugins)
	p.guardWindows(c)
	c.Bindings = p.bindings(f.Bindings, c.Policies)
	c.Allow = p.allow(f.Allow, c.Policies)
	c.DefaultPolicy = f.DefaultPolicy
	if f.DefaultPolicy != "" {
		p.policyName("defaultPolicy", f.DefaultPolicy, c.Policies)
	}
	return c
}

func (p *parser) client(f *configFile, c *Config) {
	if f.ClientConnection.Kubeconfig != "" {
		c.ClientConnection.Kubeconfig = p.path(f.ClientConnection.Kubeconfig)
	}
	c.ClientConnection.Server = f.ClientConnection.Server
	if err := CheckServer(c.ClientConnection.Server); err != nil {
		p.errorf("clientConnection.server", "%w", err)
	}
}
