package wasm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Input is an optional input of plugins: what a bit of sluice_needs asks for, or the values of a kind of key.
type Input struct {
	Name string // as in Options.Missing
	Text string // for people
	need uint32 // bit of sluice_needs, or …
	kind string // … kind of keys
}

// Inputs returns all optional inputs of this version of the ABI.
func Inputs() []Input {
	return []Input{
		{"connections", "numbers of established connections", abi.NeedConnections, ""},
		{"outcomes", "outcomes of connections", abi.NeedOutcomes, ""},
		{"nodes", "Nodes and CPU of zones, and the index of this node", abi.NeedNodes, ""},
		{"podNames", "names of Pods", abi.NeedPodNames, ""},
		{"endpointState", "states of endpoints", abi.NeedEndpointState, ""},
		{"podLabels", "labels of Pods", 0, abi.KeyPodLabel},
		{"podAnnotations", "annotations of Pods", 0, abi.KeyPodAnnotation},
		{"podCPU", "CPU requests of Pods", 0, abi.KeyPodCPU},
		{"nodeLabels", "labels of Nodes", 0, abi.KeyNodeLabel},
		{"serviceLabels", "labels of Services", 0, abi.KeyServiceLabel},
		{"serviceAnnotations", "annotations of Services", 0, abi.KeyServiceAnnotation},
		{"namespaceLabels", "labels of namespaces", 0, abi.KeyNamespaceLabel},
		{"endpointLoad", "load that endpoints report", 0, abi.KeyLoad},
	}
}

// Asked returns what a plugin with these needs and declared keys asks for of this input, "" if nothing.
func (in Input) Asked(needs uint32, keys []string) string {
	if in.need&needs != 0 {
		return in.Text
	}
	var names []string
	for _, k := range keys {
		if kind, name, _ := abi.KeyKind(k); kind == in.kind {
			names = append(names, name)
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case in.kind == abi.KeyPodCPU:
		return in.Text
	}
	return in.Text + ": " + strings.Join(names, ", ")
}

// SetMissing replaces Options.Missing. Plugins that have been loaded, and settings that have been checked, are not looked at: see
// Plugin.Missing.
func (h *Host) SetMissing(missing map[string]string) { h.missing.Store(&missing) }

// Missing returns why the plugin may not be called with settings that Check has found to be good: they ask for what the host
// cannot provide now.
func (p *Plugin) Missing(settings string) error {
	in := p.declared.of(settings)
	return errors.Join(p.host.checkNeeds(in.needs), p.host.checkKeys(in.keys))
}

// checkNeeds refuses needs that this host does not serve: without its inputs a plugin would decide on missing data.
func (h *Host) checkNeeds(needs uint32) error {
	if unknown := needs &^ abi.AllNeeds; unknown != 0 {
		return fmt.Errorf("module refused: sluice_needs asks for unknown inputs: bits %#x", unknown)
	}
	missing := *h.missing.Load()
	var errs []error
	for _, in := range Inputs() {
		if why := missing[in.Name]; in.need&needs != 0 && why != "" {
			errs = append(errs, fmt.Errorf("module refused: sluice_needs asks for %s (%s, bit %#x): %s", in.Name, in.Text, in.need, why))
		}
	}
	return errors.Join(errs...)
}

// checkKeys refuses keys whose values this host does not serve.
func (h *Host) checkKeys(keys []string) error {
	missing := *h.missing.Load()
	var errs []error
	for _, k := range keys {
		kind, _, _ := abi.KeyKind(k)
		for _, in := range Inputs() {
			if why := missing[in.Name]; in.kind == kind && why != "" {
				errs = append(errs, fmt.Errorf("module refused: sluice_keys declares %q (%s): %s", k, in.Text, why))
			}
		}
	}
	return errors.Join(errs...)
}
