package printer

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Trace prints a result in human-readable form.
func Trace(w io.Writer, a *api.Traced, flow *api.TracedFlow) error {
	fmt.Fprintf(w, "%s → %s/%s  %s", printable.Escape(flow.From), printable.Escape(flow.To), printable.Escape(flow.Protocol), printable.Escape(a.Verdict))
	if a.Service != "" {
		fmt.Fprintf(w, "  %s", printable.Escape(a.Service))
	}
	fmt.Fprintf(w, "\n  %s\n", printable.Escape(a.Why))
	if a.Node != "" {
		fmt.Fprintf(w, "  by the sluice that runs on node %s, configuration %s\n", printable.Escape(a.Node), printable.Escape(a.Configuration))
	}
	if len(a.Endpoints) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  ENDPOINT\tWEIGHT\tSHARE\tSOURCE")
	for _, e := range a.Endpoints {
		address, source := printable.Escape(e.Address), "kept"
		switch {
		case e.Refused:
			address, source = "refused", "-"
		case e.Masquerade:
			source = "masqueraded"
		}
		fmt.Fprintf(tw, "  %s\t%d\t%.1f %%\t%s\n", address, e.Weight, 100*e.Share, source)
	}
	return tw.Flush()
}
