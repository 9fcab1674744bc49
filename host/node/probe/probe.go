// Package probe checks the capabilities, sysctls and conntrack settings of this host and sets those that sluice owns. The
// features of nf_tables are probed by host/backend/nftables.
package probe

import (
	"path/filepath"
	"strings"
)

// Host is the host to probe.
type Host struct {
	Root string // directory with proc and sys; "" means /
	CPUs int    // multiplied with conntrack.maxPerCore
}

func (h Host) path(p string) string { return filepath.Join("/", h.Root, p) }

// State is the result of a check.
type State string

// Results of a check. A setting that sluice run will change is OK.
const (
	OK      State = "ok"
	Warning State = "warning" // sluice works, with the finding's Impact
	Missing State = "missing"
	Unknown State = "unknown" // the check failed
)

// Finding is the result of one check.
type Finding struct {
	Group    string `json:"group"` // such as "sysctls"
	Name     string `json:"name"`
	State    State  `json:"state"`
	Required bool   `json:"required"`         // sluice does not run without it
	Found    string `json:"found,omitempty"`  // the current value, or why there is none
	Impact   string `json:"impact,omitempty"` // what does not work; "" if State is OK
	Remedy   string `json:"remedy,omitempty"` // what to do
}

// RequiredMissing reports whether a required finding is Missing. Unknown does not count.
func RequiredMissing(findings []Finding) bool {
	for _, f := range findings {
		if f.Required && f.State == Missing {
			return true
		}
	}
	return false
}

// sysctlPath returns the file of a sysctl. As in sysctl(8), a slash in the name is a dot in an interface name.
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
