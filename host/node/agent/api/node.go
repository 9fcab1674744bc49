package api

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Node is what of the configuration is in force on a node.
type Node struct {
	Configuration Configuration `json:"configuration"`
	Plugins       []Plugin      `json:"plugins"`
	Policies      []Policy      `json:"policies"`
}

// Configuration is the configuration in force.
type Configuration struct {
	Hash string `json:"hash"` // see config.Config.Hash
	// Error is why the configuration file, as it is now, is not in force, and Since when that was found; "": it is.
	Error string     `json:"error,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	// NeedsRestart: only the fields that Error names are not in force.
	NeedsRestart bool `json:"needsRestart,omitempty"`
	// Loaded is when a configuration file, and all that it names, was last read and put into force; only in a Status.
	Loaded *time.Time `json:"loaded,omitempty"`
}

// Plugin is a plugin that policies use.
type Plugin struct {
	Name   string     `json:"name"`
	Digest string     `json:"digest,omitempty"` // of the module in force; "": none is loaded
	Image  string     `json:"image,omitempty"`  // that the module in force is from, with the digest of the image; "": a file
	Error  string     `json:"error,omitempty"`  // why the module or settings of the configuration are not in force
	Since  *time.Time `json:"since,omitempty"`  // of Error
	// Loading: nothing has failed, the module is being pulled or compiled. Error says what is awaited.
	Loading bool `json:"loading,omitempty"`
	// Unconfined are the layers of confinement that the plugin's process lacks, see package confine.
	Unconfined []string `json:"unconfined,omitempty"`
}

// Policy is a revision of a policy; bindings with settings make further ones.
type Policy struct {
	Name     string `json:"name"`
	Revision string `json:"revision,omitempty"` // "": a plugin is not loaded
	Preset   string `json:"preset,omitempty"`   // that its plugins are from
}

// problems returns what of the configuration is not in force.
func (n *Node) problems() (out []string) {
	if n == nil {
		return nil
	}
	if c := &n.Configuration; c.Error != "" {
		out = append(out, ConfigurationProblem(c.Hash, since(c.Since), c.Error, c.NeedsRestart))
	}
	for i := range n.Plugins {
		if p := &n.Plugins[i]; p.Error != "" && !p.Loading {
			out = append(out, "loading failed"+p.notInForce())
		}
	}
	return out
}

// notInForce says since when and why a module is not in force, and which one is.
func (p *Plugin) notInForce() string {
	digest := "no revision is in force"
	if p.Digest != "" {
		digest = p.Digest + " is in force"
	}
	return since(p.Since) + "; " + digest + ": " + oneLine(p.Error)
}

// loading returns what is said of the plugins that are being loaded.
func (n *Node) loading() (out []string) {
	if n == nil {
		return nil
	}
	for i := range n.Plugins {
		if p := &n.Plugins[i]; p.Loading {
			out = append(out, "loading"+p.notInForce())
		}
	}
	return out
}

// says reports whether the error of a Service is that of a plugin, which is said with the plugin.
func (n *Node) says(text string) bool {
	return n != nil && text != "" && slices.ContainsFunc(n.Plugins, func(p Plugin) bool { return p.Error != "" && strings.Contains(text, p.Error) })
}

// ConfigurationProblem describes why a configuration file is not in force, given the hash of what is.
func ConfigurationProblem(hash, since, reason string, needsRestart bool) string {
	reason = oneLine(reason)
	if needsRestart {
		return "configuration in force in part" + since + ", hash " + hash + "; these fields need a restart of sluice: " + reason
	}
	return "configuration rejected" + since + "; the previous one, hash " + hash + ", stays in force: " + reason
}

func since(at *time.Time) string {
	if at == nil {
		return ""
	}
	return " since " + at.Format(time.RFC3339)
}

// Print prints what of the configuration is not in force, and the modules of the named plugins.
func (n *Node) Print(w io.Writer, plugins []string) {
	if n == nil {
		return
	}
	for _, name := range plugins {
		for i := range n.Plugins {
			if p := &n.Plugins[i]; p.Name == name && p.Digest != "" {
				image := ""
				if p.Image != "" {
					image = ", of the image " + p.Image
				}
				fmt.Fprintf(w, "  plugin     %s %s%s\n", p.Name, p.Digest, image)
			}
		}
	}
	for _, text := range n.problems() {
		fmt.Fprintf(w, "  problem    %s\n", text)
	}
	for _, text := range n.loading() {
		fmt.Fprintf(w, "  loading    %s\n", strings.TrimPrefix(text, "loading "))
	}
}

// OwnError returns Error, unless Node says it of a plugin.
func (x *Explanation) OwnError() string {
	if x.Node.says(x.Error) {
		return ""
	}
	return x.Error
}

// Problems returns what of a Service is failing, and what is degraded, in words; nil: nothing.
//
// Failing: its policy fails, its annotations are not in force, a frontend is not programmed, or a module or the configuration is
// not in force. Degraded: frontends that another Service has, what limits leave out, what the backend can represent only
// approximately, shadows that fail, endpoints that a panic holds, Pods that cannot be read, and policies that a guard has fallen
// back from, or whose guard is blind.
func (x *Explanation) Problems() (failing, degraded []string) {
	if x.OwnError() != "" {
		failing = append(failing, x.Error)
	}
	if a := x.Annotation; a != nil && a.Error != "" {
		failing = append(failing, a.Error)
	}
	if s := x.Settings; s != nil && s.Error != "" {
		failing = append(failing, s.Error)
	}
	for _, text := range x.Unprogrammed {
		failing = append(failing, "not programmed: "+text)
	}
	failing = append(failing, x.Node.problems()...)
	degraded = append(degraded, x.Node.loading()...)
	for _, list := range []struct {
		what  string
		texts []string
	}{{"conflict", x.Contested}, {"conflict", x.LosingRoutes}, {"limit", x.Omitted}, {"approximated", x.Degraded}} {
		for _, text := range list.texts {
			degraded = append(degraded, list.what+": "+text)
		}
	}
	for i := range x.Pools {
		for j := 0; x.Pools[i].Route != nil && j < len(x.Pools[i].Route.Backends); j++ {
			if b := &x.Pools[i].Route.Backends[j]; b.Refused {
				degraded = append(degraded, fmt.Sprintf("%s %s, %s pool: %s", x.Pools[i].Route.Kind, x.Pools[i].Route.Name, x.Pools[i].Pool, b.Text()))
			}
		}
		if s := x.Pools[i].Shadow; s != nil && s.Error != "" {
			degraded = append(degraded, s.Error)
		}
		if p := &x.Pools[i]; p.Panic != nil && p.Panic.Held > 0 {
			degraded = append(degraded, fmt.Sprintf("port %s, %s pool: a panic holds %d endpoints", p.Port, p.Pool, p.Panic.Held))
		}
	}
	for i := range x.Guards {
		if g := &x.Guards[i]; g.Blind || g.State == FallenBack {
			degraded = append(degraded, "guard: "+g.Text)
		}
	}
	if x.Pods == PodsUnavailable {
		degraded = append(degraded, "the Pods of the Service cannot be read")
	}
	return failing, degraded
}
