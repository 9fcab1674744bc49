package printer

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// printInputs prints what a plugin saw when it gave its last answer.
func printInputs(w io.Writer, in *api.Input) {
	fmt.Fprintf(w, "\n  %s saw at %s UTC", in.Plugin, in.At.Format(time.TimeOnly))
	if in.Changed {
		fmt.Fprint(w, ", and something has changed since:")
	} else {
		fmt.Fprint(w, ":")
	}
	if in.Settings != "" {
		fmt.Fprintf(w, "\n    settings %s", in.Settings)
	}
	if in.NodeCount != nil {
		fmt.Fprintf(w, "\n    index of this node: %d of %d", *in.NodeIndex, *in.NodeCount)
	} else if len(in.Zones) > 0 && in.Zones[0].Nodes != nil {
		fmt.Fprint(w, "\n    index of this node: unknown")
	}
	for _, z := range in.Zones {
		fmt.Fprintf(w, "\n    zone %s: %s, %d serving, %d ready", z.Name, count(int(z.Total), "endpoint", "endpoints"), z.Serving, z.Ready)
		if z.Nodes != nil {
			fmt.Fprintf(w, "; %s, %d m CPU", count(int(*z.Nodes), "Node", "Nodes"), *z.MilliCPU)
		}
	}
	for _, v := range in.Service {
		fmt.Fprintf(w, "\n    %s: %s", v.Key, valueText(v.Value))
	}
	if in.ConnectionsAge != "" {
		fmt.Fprintf(w, "\n    %s", countedText("established connections", in.ConnectionsAge, "counted %s before"))
	}
	if in.OutcomesWindow != "" {
		fmt.Fprintf(w, "\n    %s", countedText("outcomes", in.OutcomesWindow, "of new connections in the last %s (in parentheses: since the first count)"))
	}
	fmt.Fprintln(w)
	if len(in.Endpoints) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	first := &in.Endpoints[0]
	named := slices.ContainsFunc(in.Endpoints, func(e api.InputEndpoint) bool { return e.Pod != "" })
	head := []string{"    ENDPOINT", "CAPACITY", "SHARE", "SINCE"}
	if in.ConnectionsAge != "" {
		head = append(head, "CONNECTIONS")
	}
	if in.OutcomesWindow != "" {
		head = append(head, "ANSWERED", "REFUSED", "UNANSWERED", "ATTEMPTS")
	}
	for _, v := range first.Values {
		head = append(head, v.Key) // keys are case-sensitive
	}
	if named {
		head = append(head, "POD")
	}
	fmt.Fprintln(tw, strings.Join(append(head, "CONDITIONS"), "\t"))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		since := "-"
		if at := e.TerminatingSince; at != nil {
			since = "terminating " + at.Format(time.TimeOnly)
		} else if at := e.ReadySince; at != nil {
			since = "ready " + at.Format(time.TimeOnly)
		}
		cells := []string{"    " + e.Address, api.Number(e.Capacity), api.Number(e.Share), since}
		if in.ConnectionsAge != "" {
			cells = append(cells, countText(e.Connections))
		}
		if in.OutcomesWindow != "" {
			cells = append(cells, outcomesCells(e.Outcomes)...)
		}
		for _, v := range e.Values {
			cells = append(cells, valueText(v.Value))
		}
		if named {
			cells = append(cells, dash(e.Pod))
		}
		fmt.Fprintln(tw, strings.Join(append(cells, dash(strings.Join(e.Conditions, ","))), "\t"))
	}
	tw.Flush()
	if in.Omitted > 0 {
		fmt.Fprintf(w, "    and %d more endpoints\n", in.Omitted)
	}
}

// outcomesCells are the outcomes in the window, with those since the node counts them.
func outcomesCells(o *api.InputOutcomes) []string {
	if o == nil {
		return []string{"-", "-", "-", "-"}
	}
	cell := func(now, total uint64) string { return fmt.Sprintf("%d (%d)", now, total) }
	return []string{
		cell(o.Answered, o.Total.Answered), cell(o.Refused, o.Total.Refused), cell(o.Unanswered, o.Total.Unanswered), cell(o.Attempts, o.Total.Attempts),
	}
}

// countedText says to what time counted numbers refer; duration is "unknown" if there are none.
func countedText(what, duration, format string) string {
	if duration == api.Unknown {
		return what + ": not counted"
	}
	return what + ": " + fmt.Sprintf(format, duration)
}

// valueText is a value in quotes, which tell it from an absent one.
func valueText(v *string) string {
	if v == nil {
		return "-"
	}
	return `"` + *v + `"`
}

func countText(n *uint32) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*n), 10)
}
