package printer

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Status prints a status in human-readable form.
func Status(w io.Writer, s *api.Status) error {
	s = printable.Strings(s)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("sluice", "%s, mode %s, running for %s", cmp.Or(s.Version, "(unknown version)"), s.Mode, Ago(s.At, s.Started))
	line("node", "%s%s", s.Node, zoneText(s.Zone))
	line("source", "%s%s", s.Source, apiText(s.API))
	switch k := &s.Kernel; {
	case s.Synced == nil:
		line("synced", "not yet")
	case k.InSync:
		line("synced", "since %s (first after %s); last change %s ago", ClockTime(*s.Synced), s.Synced.Sub(s.Started).Round(time.Millisecond), lastSync(s))
	default:
		line("synced", "no: an update is due; last in sync %s ago", lastSync(s))
	}
	line("plan", "%d Services, %d frontends, %d endpoints", s.Plan.Services, s.Plan.Frontends, s.Plan.Endpoints)
	text := fmt.Sprintf("%d frontends", s.Kernel.Frontends)
	if s.Kernel.Unprogrammed > 0 {
		text += fmt.Sprintf(", %d rejected", s.Kernel.Unprogrammed)
	}
	if s.Kernel.Approximated > 0 {
		text += fmt.Sprintf(", %d approximated", s.Kernel.Approximated)
	}
	line("kernel", "%s", text)
	if s.Plan.Draining > 0 {
		line("drains", "%s (see sluice drains)", count(s.Plan.Draining, "endpoint", "endpoints"))
	} else {
		line("drains", "none")
	}
	c := &s.Configuration
	text = "hash " + c.Hash
	if c.Loaded != nil {
		text += ", loaded " + ClockTime(*c.Loaded)
	}
	if c.Error != "" {
		text += "; the file as it is now is rejected"
	}
	line("configuration", "%s", text)
	line("plugins", "%s", pluginsText(s))
	if r := s.Repairs; r != nil {
		line("repairs", "%d changes by others, the last %s ago: %s%s", r.Changes, Ago(s.At, r.Last), r.Objects, byText(r.Processes))
	} else {
		line("repairs", "none")
	}
	if r := s.Recording; r != nil {
		text := fmt.Sprintf("%s, %.1f KiB written, %d changes dropped", r.File, float64(r.Bytes)/(1<<10), r.Dropped)
		if r.Error != "" {
			text += "; it has ended"
		}
		line("recording", "%s", text)
	}
	if s.LogLevel != "" {
		line("log level", "%s", s.LogLevel)
	}
	for _, list := range []struct {
		name string
		all  []api.Problem
	}{{"FAILING", s.Failing}, {"DEGRADED", s.Degraded}} {
		for _, p := range list.all {
			fmt.Fprintf(w, "\n%s  %s\n", list.name, p.Text)
			if p.Next != "" {
				fmt.Fprintf(w, "  look at: %s\n", p.Next)
			}
		}
	}
	if len(s.Failing)+len(s.Degraded) == 0 {
		_, err := fmt.Fprintln(w, "\nnothing is failing or degraded")
		return err
	}
	return nil
}

func zoneText(zone string) string {
	if zone == "" {
		return ", without a zone"
	}
	return ", zone " + zone
}

func apiText(a *api.API) string {
	switch {
	case a == nil:
		return ""
	case len(a.Stale) == 0:
		return ", all resources are watched"
	}
	var names []string
	for _, r := range a.Stale {
		names = append(names, r.Resource)
	}
	return ", not watched: " + strings.Join(names, ", ")
}

// count returns a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func pluginsText(s *api.Status) string {
	loaded := 0
	for i := range s.Plugins {
		if s.Plugins[i].Digest != "" {
			loaded++
		}
	}
	text, lacking := fmt.Sprintf("%d of %d loaded", loaded, len(s.Plugins)), 0
	if len(s.Plugins) == 0 {
		text = "none"
	}
	if len(s.Policies) > 0 {
		text += ", " + count(len(s.Policies), "policy", "policies")
	}
	for i := range s.Policies {
		if s.Policies[i].Revision == "" {
			lacking++
		}
	}
	if lacking > 0 {
		text += fmt.Sprintf(", %d of them lacking a plugin", lacking)
	}
	for i := range s.Plugins {
		if missing := s.Plugins[i].Unconfined; len(missing) > 0 { // the same for all
			return text + "; their processes are not confined by: " + strings.Join(missing, ", ") + " (see sluice check)"
		}
	}
	return text
}

func byText(processes string) string {
	if processes == "" {
		return ""
	}
	return " by " + processes
}

func lastSync(s *api.Status) string {
	if s.Kernel.LastSync == nil {
		return "never"
	}
	return Ago(s.At, *s.Kernel.LastSync)
}

// Ago returns the time between two times, to the second.
func Ago(now, then time.Time) string { return max(0, now.Sub(then)).Round(time.Second).String() }

func ClockTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
