package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// refusedRetried is the value of refused= in the text form.
const refusedRetried = "retried"

// flowsOffloaded is the value of flows= in the text form.
const flowsOffloaded = "offloaded"

// outcomesCounted is the value of outcomes= in the text form.
const outcomesCounted = "counted"

// deadlineLayout is RFC 3339 with milliseconds, the unit of deadlines.
const deadlineLayout = "2006-01-02T15:04:05.000Z07:00"

// Format returns the text form of a plan. It is human-readable, sorted by Service port and key, and equal for equal plans. Parse
// parses it. Counts, totals and shares are derived from the weights.
func Format(p *Plan) string {
	var b strings.Builder
	p.Global.format(&b)
	list := p.byOwner()
	for len(list) > 0 {
		svc := list[0].Owner.Service
		n := slices.IndexFunc(list, func(f *Frontend) bool { return f.Owner.Service != svc })
		if n < 0 {
			n = len(list)
		}
		fmt.Fprintf(&b, "\nservice %s\n", svc)
		formatService(&b, list[:n])
		list = list[n:]
	}
	return b.String()
}

// FormatFrontend returns the text form of a frontend.
func FormatFrontend(f *Frontend) string {
	var b strings.Builder
	fmt.Fprintf(&b, "service %s\n", f.Owner.Service)
	formatService(&b, []*Frontend{f})
	return b.String()
}

// byOwner returns all frontends, sorted by Service port, then key.
func (p *Plan) byOwner() []*Frontend {
	list := make([]*Frontend, 0, len(p.Frontends))
	for _, f := range p.Frontends {
		list = append(list, f)
	}
	slices.SortFunc(list, func(f, g *Frontend) int {
		if c := f.Owner.Compare(g.Owner); c != 0 {
			return c
		}
		return f.Key.Compare(g.Key)
	})
	return list
}

func (g *Global) format(b *strings.Builder) {
	b.WriteString("global\n")
	line := func(name string, values []string) {
		if len(values) > 0 {
			fmt.Fprintf(b, "  %-19s  %s\n", name, strings.Join(values, " "))
		}
	}
	line("node-port-addresses", stringsOf(g.NodePortAddrs))
	line("localhost-addresses", stringsOf(g.LocalhostAddrs))
	line("pod-sources", stringsOf(g.PodSources))
	line("pod-interfaces", g.PodInterfaces)
	line("service-cidrs", stringsOf(g.ServiceCIDRs))
	line("no-masquerade-cidrs", stringsOf(g.NoMasquerade))
	if g.MasqueradeMark != 0 {
		line("masquerade-mark", []string{fmt.Sprintf("%#x", g.MasqueradeMark)})
	}
}

// formatService writes the frontends of a Service with aligned columns.
func formatService(b *strings.Builder, list []*Frontend) {
	var port, key, kind int
	for _, f := range list {
		port = max(port, len(portText(f.Owner.Port)))
		key = max(key, len(f.Key.String()))
		kind = max(kind, len(f.Kind.String()))
	}
	for _, f := range list {
		fmt.Fprintf(b, "  port %-*s  %-*s  %-*s  masquerade=%s", port, portText(f.Owner.Port), key, f.Key, kind, f.Kind, f.Masquerade)
		if f.Affinity != 0 {
			fmt.Fprintf(b, " affinity=%s", f.Affinity)
		}
		fmt.Fprintf(b, " balance=%s", f.Balance)
		if f.Outcomes {
			b.WriteString(" outcomes=" + outcomesCounted)
		}
		if f.RetryRefused {
			b.WriteString(" refused=" + refusedRetried)
		}
		if f.LongLived {
			b.WriteString(" flows=" + flowsOffloaded)
		}
		b.WriteByte('\n')
		if len(f.SourceRanges) > 0 {
			fmt.Fprintf(b, "    source-ranges %s\n", strings.Join(stringsOf(f.SourceRanges), " "))
		}
		formatPool(b, "", &f.Pool)
		if f.Outside != nil {
			formatPool(b, "outside ", f.Outside)
		}
	}
}

func formatPool(b *strings.Builder, which string, p *Pool) {
	fmt.Fprintf(b, "    %s%s", which, p.Verdict)
	if len(p.Endpoints) == 0 {
		b.WriteByte('\n')
		return
	}
	total := p.Total()
	fmt.Fprintf(b, " %s\n", poolSummary(len(p.Endpoints), total))
	var addr, weight int
	for _, m := range p.Endpoints {
		addr = max(addr, len(m.text()))
		weight = max(weight, len(strconv.Itoa(int(m.Weight))))
	}
	for _, m := range p.Endpoints {
		fmt.Fprintf(b, "      %-*s  weight %*d  %5s %%  %s", addr, m.text(), weight, m.Weight, percent(m.Weight, total), m.Phase)
		if m.Deadline != 0 {
			fmt.Fprintf(b, " until %s", time.UnixMilli(m.Deadline).UTC().Format(deadlineLayout))
		}
		b.WriteByte('\n')
	}
}

// refusedAddr is the address of the connections that are refused in the text form.
const refusedAddr = "refused"

// text returns the address and port.
func (m *Endpoint) text() string {
	if IsRefusing(m.Addr.Addr()) {
		return refusedAddr + ":" + strconv.Itoa(int(m.Addr.Port()))
	}
	return m.Addr.String()
}

func poolSummary(endpoints, total int) string {
	noun := "endpoints"
	if endpoints == 1 {
		noun = "endpoint"
	}
	return fmt.Sprintf("%d %s, total %d", endpoints, noun, total)
}

// percent returns an endpoint's share with one decimal.
func percent(weight uint16, total int) string {
	if total == 0 {
		return "0.0"
	}
	return strconv.FormatFloat(100*float64(weight)/float64(total), 'f', 1, 64)
}

// portText returns the name of a port, or a dash, which is not a valid name, for an unnamed port.
func portText(name string) string {
	if name == "" {
		return "-"
	}
	return name
}

func stringsOf[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}
