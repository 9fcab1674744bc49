package main

import (
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// moduleInfo is what the file of a module says.
type moduleInfo struct {
	File               string         `json:"file"`
	Digest             string         `json:"digest"` // sha256:…
	Bytes              int            `json:"bytes"`
	MeteredBytes       int            `json:"meteredBytes"` // with what counts fuel
	Functions          int            `json:"functions"`
	LargestFunction    int            `json:"largestFunctionBytes"`
	MemoryBytes        uint64         `json:"memoryBytes"`                  // that the module declares: the least
	MaximumMemoryBytes uint64         `json:"maximumMemoryBytes,omitempty"` // that the module declares: the most
	Imports            []moduleItem   `json:"imports"`
	Exports            []moduleItem   `json:"exports"`
	Producers          []producerInfo `json:"producers"` // as the module says
}

// moduleItem is an import or an export.
type moduleItem struct {
	Module string `json:"module,omitempty"` // of an import
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Type   string `json:"type,omitempty"` // of a function
}

type producerInfo struct {
	Field   string `json:"field"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// pluginInfo is what a plugin says of itself, with its settings.
type pluginInfo struct {
	Revision  string   `json:"revision"` // of module and ABI
	ABI       string   `json:"abi"`      // major.minor
	Role      string   `json:"role"`
	Needs     []string `json:"needs"` // names of inputs
	Keys      []string `json:"keys"`
	RefusedBy []string `json:"refusedBy"` // modes, with the input that they cannot give

	asks   string // needs and keys in words
	values string // what those of results are, by the role
}

func newModuleInfo(file string, module []byte, m *meter.Info) moduleInfo {
	const page = 1 << 16
	out := moduleInfo{
		File: file, Digest: digestOf(module), Bytes: m.Size, MeteredBytes: m.Metered, Functions: m.Functions, LargestFunction: m.LargestBody,
		MemoryBytes: uint64(m.MemoryMin) * page, MaximumMemoryBytes: uint64(m.MemoryMax) * page,
		Imports: []moduleItem{}, Exports: []moduleItem{}, Producers: []producerInfo{},
	}
	for _, im := range m.Imports {
		out.Imports = append(out.Imports, moduleItem{im.Module, im.Name, "function", im.Type.String()})
	}
	for _, e := range m.Exports {
		item := moduleItem{Name: e.Name, Kind: []string{"function", "table", "memory", "global"}[e.Kind]}
		if e.Kind == meter.KindFunc {
			item.Type = e.Type.String()
		}
		out.Exports = append(out.Exports, item)
	}
	for _, p := range m.Producers {
		out.Producers = append(out.Producers, producerInfo(p))
	}
	return out
}

func newPluginInfo(r *wasm.Report) pluginInfo {
	out := pluginInfo{
		Revision: r.Revision, ABI: fmt.Sprintf("%d.%d", r.ABI>>16, r.ABI&0xffff), Role: r.Role.String(), Needs: []string{}, Keys: append([]string{}, r.Keys...),
		RefusedBy: append([]string{}, refusedBy(dataplane.All(), r.Needs, r.Keys)...), asks: needsText(r.Needs, r.Keys), values: "shares",
	}
	if r.Role.WritesCapacity() {
		out.values = "capacities"
	}
	for _, in := range wasm.Inputs() {
		if in.Asked(r.Needs, nil) != "" {
			out.Needs = append(out.Needs, in.Name)
		}
	}
	return out
}

// print prints the lines of a plugin.
func (p *pluginInfo) print(line func(name, format string, args ...any)) {
	line("revision", "%s (module and ABI)", p.Revision[:16])
	line("ABI version", "%s", p.ABI)
	line("role", "%s", p.Role)
	line("needs", "%s", p.asks)
	for _, text := range p.RefusedBy {
		line("refused by", "%s", text)
	}
}

// needsText names the optional inputs of a plugin, with the keys that it declares.
func needsText(needs uint32, keys []string) string {
	var all []string
	for _, in := range wasm.Inputs() {
		if text := in.Asked(needs, keys); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "; ")
}

// importsText counts imports by module.
func (m *moduleInfo) importsText() string {
	count := map[string]int{}
	var modules []string
	for _, im := range m.Imports {
		if count[im.Module] == 0 {
			modules = append(modules, im.Module)
		}
		count[im.Module]++
	}
	if len(modules) == 0 {
		return "none"
	}
	for i, name := range modules {
		modules[i] = fmt.Sprintf("%d of %s", count[name], name)
	}
	return strings.Join(modules, ", ")
}

func (m *moduleInfo) producersText() string {
	var all []string
	for _, p := range m.Producers {
		all = append(all, strings.TrimSpace(p.Field+" "+p.Name+" "+p.Version))
	}
	if len(all) == 0 {
		return "not stated"
	}
	return strings.Join(all, ", ")
}
