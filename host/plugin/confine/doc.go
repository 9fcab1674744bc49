// Package confine takes rights away from processes that run what strangers have written: the compiler of plugins, and the
// plugins.
//
// The parent starts such a process with Attributes, and it takes away its own rights with Enter once it has what it needs.
// Kernels and container runtimes may lack a layer; Enter reports those, and those that remain are in force.
package confine

// Names of layers.
const (
	Priority     = "priority"
	Limits       = "resource limits"
	Landlock     = "no files (Landlock)"
	Capabilities = "no capabilities"
	Privileges   = "no new privileges"
	Filter       = "system calls (seccomp)"
)

// Layer is one part of the confinement, and why it is not in force.
type Layer struct {
	Name string `json:"name"`
	Err  string `json:"err,omitempty"`
}
