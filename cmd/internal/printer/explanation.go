package printer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Explanation prints an explanation in human-readable form.
func Explanation(w io.Writer, x *api.Explanation, kernelNote string) error {
	x, kernelNote = printable.Strings(x), printable.Escape(kernelNote)
	fmt.Fprintf(w, "Service %s\n", x.Service)
	fmt.Fprintf(w, "  node       %s%s\n", x.NodeName, zoneText(x.Zone))
	if x.At != nil {
		fmt.Fprintf(w, "  time       %s UTC, as plugins see it\n", x.At.UTC().Format(time.DateTime))
	}
	for _, text := range x.NodeWarnings {
		fmt.Fprintf(w, "             %s\n", text)
	}
	switch {
	case x.Policy == "":
		fmt.Fprintln(w, "  policy     none: the default rules decide")
	default:
		preset := ""
		if x.Preset != "" {
			preset = "preset " + x.Preset + ": "
		}
		fmt.Fprintf(w, "  policy     %s (%s%s)\n", x.Policy, preset, cmp.Or(strings.Join(x.Plugins, " → "), "no plugins"))
	}
	for i := range x.Ports {
		p := &x.Ports[i]
		at := ""
		if len(x.Ports) > 1 {
			at = "port " + strings.Join(p.Ports, ", ") + ": "
		}
		for _, c := range p.Candidates {
			state := c.State
			if c.Why != "" {
				state += ": " + c.Why
			}
			fmt.Fprintf(w, "  layer      %s%s (%s): %s\n", at, c.Policy, c.Layer, state)
		}
	}
	if x.Revision != "" {
		fmt.Fprintf(w, "  revision   %s\n", x.Revision)
	}
	x.Node.Print(w, x.Plugins)
	if x.Shadow != nil {
		fmt.Fprintf(w, "  shadow     %s: %s\n", strings.Join(x.Shadow.Plugins, " → "), shadowText(x.Shadow))
	}
	for _, b := range x.Nodes {
		fmt.Fprintf(w, "  binding    %s\n", b)
	}
	for _, g := range x.Guards {
		fmt.Fprintf(w, "  guard      %s", g.Text)
		if g.Since != nil {
			fmt.Fprintf(w, " (since %s)", g.Since.Format(time.RFC3339))
		}
		fmt.Fprintln(w)
	}
	if a := x.Annotation; a != nil && a.Error != "" {
		fmt.Fprintf(w, "  annotation %s\n", a.Error)
	}
	if s := x.Settings; s != nil {
		if s.Error != "" {
			fmt.Fprintf(w, "  settings   of the Service are not in force: %s\n", s.Error)
		}
		for _, p := range s.InForce {
			fmt.Fprintf(w, "  settings   %s: %s\n", p.Plugin, p.Settings)
		}
	}
	if text := x.OwnError(); text != "" {
		fmt.Fprintf(w, "  error      %s\n", text)
	}
	if len(x.Frontends) == 0 {
		fmt.Fprintln(w, "  frontends  none")
	}
	for i, f := range x.Frontends {
		fmt.Fprintf(w, "  %-9s  %s\n", []string{"frontends", ""}[min(i, 1)], f)
	}
	for i, c := range x.Connections {
		fmt.Fprintf(w, "  %-11s %s\n", []string{"connections", ""}[min(i, 1)], c)
	}
	for _, c := range slices.Concat(x.Contested, x.LosingRoutes) {
		fmt.Fprintf(w, "  conflict   %s\n", c)
	}
	switch x.Pods {
	case api.PodsPending:
		fmt.Fprintln(w, "  pods       not read yet; plugins that declare keys of Pods wait for them for at most 30 s")
	case api.PodsUnavailable:
		fmt.Fprintln(w, "  pods       cannot be read (the log of sluice says why); plugins see none of their values")
	}
	for _, o := range x.Omitted {
		fmt.Fprintf(w, "  limit      %s\n", o)
	}
	if len(x.Ignored) > 0 {
		fmt.Fprintf(w, "  ignored    external IPs %s (externalIPs: Ignore)\n", strings.Join(x.Ignored, ", "))
	}
	for _, f := range x.Unrestricted {
		fmt.Fprintf(w, "  open       %s\n", f)
	}
	for _, e := range x.WithoutPort {
		fmt.Fprintf(w, "  no port    %s\n", e)
	}
	for _, d := range x.Degraded {
		fmt.Fprintf(w, "  degraded   %s\n", d)
	}
	for _, f := range x.Unprogrammed {
		fmt.Fprintf(w, "  rejected   %s\n", f)
	}
	if kernelNote != "" {
		fmt.Fprintf(w, "  kernel     %s\n", kernelNote)
	}
	for i := range x.Pools {
		printPool(w, &x.Pools[i], x.Plugins)
	}
	return nil
}

func printPool(w io.Writer, p *api.Pool, plugins []string) {
	port := p.Port
	if port == "" {
		port = "(unnamed)"
	}
	fmt.Fprintf(w, "\nport %s %d/%s %s, %s pool: decided by %s", port, p.Number, p.Protocol, p.Family, p.Pool, p.DecidedBy)
	if p.Balance != "" {
		fmt.Fprintf(w, ", balance %s", p.Balance)
	}
	if p.TrafficHint != "" {
		fmt.Fprintf(w, ", trafficHint %s", p.TrafficHint)
	}
	if p.Topology != "none" && p.Pool == "cluster" {
		fmt.Fprintf(w, ", hints followed: %s", p.Topology)
	}
	if p.HintsIgnored != "" {
		fmt.Fprintf(w, "\n  hints not followed: %s", p.HintsIgnored)
	}
	if p.Pending != nil {
		fmt.Fprintf(w, "\n  %s", pendingText(p.Pending))
	}
	for i := 0; p.Route != nil && i < len(p.Route.Backends); i++ {
		fmt.Fprintf(w, "\n  %s %s: %s", p.Route.Kind, p.Route.Name, p.Route.Backends[i].Text())
	}
	printPanic(w, p.Panic)
	printPoolShadow(w, p.Shadow)
	fmt.Fprintln(w)
	if len(p.Endpoints) == 0 {
		fmt.Fprintln(w, "  no endpoints")
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	kernel, steps, shadow := false, len(p.Endpoints[0].Steps), p.Endpoints[0].Shadow != nil
	for _, e := range p.Endpoints {
		kernel = kernel || len(e.Kernel) > 0
	}
	pods := slices.ContainsFunc(p.Endpoints, func(e api.Endpoint) bool { return e.Pod != "" })
	head := []string{"  ENDPOINT", "NODE", "ZONE", "ELIGIBLE", "DEFAULT"}
	if pods {
		head = slices.Insert(head, 1, "POD")
	}
	if p.Route != nil {
		head = slices.Insert(head, 1, "BACKEND")
	}
	for _, s := range plugins[:steps] {
		head = append(head, strings.ToUpper(s))
	}
	if shadow {
		head = append(head, "SHADOW")
	}
	head = append(head, "WEIGHT", "SHARE")
	if kernel {
		head = append(head, "KERNEL")
	}
	fmt.Fprintln(tw, strings.Join(append(head, "WHY"), "\t"))
	var texts []string
	for i := range p.Endpoints {
		texts = append(texts, whyText(&p.Endpoints[i]))
	}
	why := newReasons(texts)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		cells := []string{"  " + e.Address, dash(e.Node), dash(e.Zone), yesNo(e.Eligible), strconv.Itoa(int(e.Default))}
		if pods {
			cells = slices.Insert(cells, 1, dash(e.Pod))
		}
		if p.Route != nil {
			cells = slices.Insert(cells, 1, e.Backend)
		}
		for _, s := range e.Steps {
			cells = append(cells, s.Value())
		}
		if shadow {
			cells = append(cells, strconv.Itoa(int(e.Shadow.Weight)))
		}
		cells = append(cells, strconv.Itoa(int(e.Weight)), fmt.Sprintf("%.1f %%", 100*e.Share))
		if kernel {
			cells = append(cells, kernelText(e))
		}
		fmt.Fprintln(tw, strings.Join(append(cells, why.cell(texts[i])), "\t"))
	}
	tw.Flush()
	for _, text := range p.Unheld {
		fmt.Fprintf(w, "  not held   %s\n", text)
	}
	why.print(w)
	for i := range p.Inputs {
		printInputs(w, &p.Inputs[i])
	}
}

// whyText returns why an endpoint has its weight: what is known of it, the reasons of the plugins, and what happens to its
// connections.
func whyText(e *api.Endpoint) string {
	why := e.Why
	if e.HeldUntil != nil {
		why += " until " + e.HeldUntil.Format(time.TimeOnly) + " UTC"
	}
	steps := e.Steps
	if e.Shadow != nil {
		steps = slices.Concat(steps, e.Shadow.Steps)
	}
	return allReasons(why, steps, e.Shed, e.ResetAt)
}

// allReasons returns what is known of an endpoint, the reasons of plugins, and what happens to its connections.
func allReasons(known string, steps []api.Step, shed *api.Shed, resetAt *time.Time) string {
	why := []string{known}
	for _, s := range steps {
		if s.Reason != "" {
			why = append(why, s.Plugin+": "+s.Reason)
		}
	}
	if shed != nil {
		why = append(why, shedText(shed))
	}
	if resetAt != nil {
		why = append(why, "connections reset at "+resetAt.Format(time.TimeOnly)+" UTC")
	}
	return strings.Join(why, "; ")
}

// pendingText describes the plugin call that a decision waits for.
func pendingText(q *api.Pending) string {
	text := "waiting for plugin " + q.Plugin + " since " + q.Since.Format(time.RFC3339)
	if q.ThrottledSince != nil {
		text += "; throttled since " + q.ThrottledSince.Format(time.RFC3339) + ": it has used up its share of CPU time"
	}
	return text
}

// shedText describes the part of an endpoint's connections that is reset.
func shedText(s *api.Shed) string {
	text := fmt.Sprintf("%.1f %% of its connections are reset", float64(s.Permille)/10)
	if s.Wanted > s.Permille {
		text += fmt.Sprintf(" (wanted %.1f %%, bounded by maxShedPercentPerSecond)", float64(s.Wanted)/10)
	}
	if s.Since != nil {
		text += " in the minute from " + s.Since.Format(time.TimeOnly) + " UTC"
	}
	return text
}

// printPanic prints the panic hold of a pool; nil: its policy has none.
func printPanic(w io.Writer, h *api.Panic) {
	if h == nil {
		return
	}
	fmt.Fprintf(w, "\n  panic: %d of %d endpoints are ready", h.Ready, h.Total)
	if !h.Panicking {
		fmt.Fprintf(w, "; below %d %%, those that were within the last %s are held", h.Below, h.Hold)
		return
	}
	fmt.Fprintf(w, ", below %d %%; %d held", h.Below, h.Held)
	if !h.OutcomesCounted {
		fmt.Fprint(w, "; whether connections to them fail is not known: outcomes are not counted")
	}
}

// kernelText returns the weights in the kernel: once if they are the same for all frontends, otherwise for each.
func kernelText(e *api.Endpoint) string {
	if len(e.Kernel) == 0 {
		return "-"
	}
	text := func(k api.KernelShare) string {
		s := fmt.Sprintf("%d of %d", k.Weight, k.Total)
		if k.Connections != nil {
			s += " (" + k.Connections.String() + ")"
		}
		return s
	}
	same := !slices.ContainsFunc(e.Kernel, func(k api.KernelShare) bool { return text(k) != text(e.Kernel[0]) })
	if same {
		return text(e.Kernel[0])
	}
	var all []string
	for _, k := range e.Kernel {
		all = append(all, k.Frontend+": "+text(k))
	}
	return strings.Join(all, ", ")
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
