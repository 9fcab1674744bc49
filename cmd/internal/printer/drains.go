package printer

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Drains prints drains in human-readable form.
func Drains(w io.Writer, x *api.Drains) error {
	x = printable.Strings(x)
	if len(x.Drains) == 0 {
		_, err := fmt.Fprintln(w, "no endpoint drains on node "+x.Node)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tPORT\tENDPOINT\tPOD\tNODE\tFOR\tSTAGE\tSHARE\tCONNECTIONS\tWHY")
	for i := range x.Drains {
		d := &x.Drains[i]
		since := "-"
		if d.Since != nil {
			since = Ago(x.At, *d.Since)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f %%\t%s\t%s\n", d.Service, portText(d), d.Address, dash(d.Pod), dash(d.Node), since, d.Stage,
			100*d.Share, Connections(d), allReasons(d.Why, d.Steps, d.Shed, d.ResetAt))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if x.ConnectionsError != "" {
		fmt.Fprintf(w, "connections are not known: %s\n", x.ConnectionsError)
	}
	if x.OmittedServices > 0 {
		fmt.Fprintf(w, "and the drains of %d more Services\n", x.OmittedServices)
	}
	return nil
}

func portText(d *api.Drain) string {
	if d.Port == "" {
		return strconv.Itoa(int(d.Number)) + "/" + d.Protocol
	}
	return d.Port
}

func Connections(d *api.Drain) string {
	if d.Connections == nil {
		return "unknown"
	}
	return strconv.FormatUint(uint64(*d.Connections), 10)
}
