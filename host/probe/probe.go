// Package probe looks at what this host lets sluice do, and sets what sluice needs set: capabilities, kernel settings,
// the connection table. The features of nf_tables are probed by host/backend/nftables.
package probe

import (
	"path/filepath"
	"strings"
)

// Host is where a kernel shows itself.
type Host struct {
	Root string // the folder that has proc and sys; "" for the real ones
	CPUs int    // that conntrack.maxPerCore counts
}

func (h Host) path(p string) string { return filepath.Join("/", h.Root, p) }

// State of a finding.
type State string

// The states. A setting that sluice run will change itself is OK.
const (
	OK      State = "ok"
	Warning State = "warning" // it works, with the cost that is named
	Missing State = "missing"
	Unknown State = "unknown" // it could not be looked at
)

// Finding is one thing that was looked at.
type Finding struct {
	Group    string `json:"group"` // such as "sysctls"
	Name     string `json:"name"`
	State    State  `json:"state"`
	Required bool   `json:"required"`         // sluice does not do its work without it
	Found    string `json:"found,omitempty"`  // what is there, or why it is not
	Impact   string `json:"costs,omitempty"`  // what does not work without it; "" when it is there
	Remedy   string `json:"remedy,omitempty"` // what to do
}

// RequiredMissing tells whether something that is required is missing. What could not be looked at is not known to be.
func RequiredMissing(findings []Finding) bool {
	for _, f := range findings {
		if f.Required && f.State == Missing {
			return true
		}
	}
	return false
}

// sysctlPath is the file of a sysctl. A dot in an interface's name stands as a slash.
func sysctlPath(name string) string {
	return "/proc/sys/" + strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}
