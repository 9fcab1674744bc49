package main

import (
	"fmt"
	"io"
)

func printProgramming(w io.Writer, all []figures) {
	fmt.Fprint(w, "\n**Programming**, nftables, from the event to the kernel's acknowledgement, planning included\n\n")
	row := func(name string, cell func(f *figures) string) {
		fmt.Fprintf(w, "| %s |", name)
		for i := range all {
			fmt.Fprintf(w, " %s |", cell(&all[i]))
		}
		fmt.Fprintln(w)
	}
	row("Services × endpoints", func(f *figures) string { return f.Size })
	fmt.Fprint(w, "|---|")
	for range all {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
	row("all, wall (CPU) s", func(f *figures) string { return fmt.Sprintf("%.2f (%.2f)", f.All, f.AllCPU) })
	row("replace one endpoint, ms: median, p99", func(f *figures) string {
		return fmt.Sprintf("%.3f, %.3f", f.Endpoint.Median, f.Endpoint.P99)
	})
	row("the same, CPU ms", func(f *figures) string { return fmt.Sprintf("%.3f", f.EndpointCPU) })
	row("delete and add a Service, ms: median, p99", func(f *figures) string {
		return fmt.Sprintf("%.3f, %.3f", f.Service.Median, f.Service.P99)
	})
	row("restart on what is there, s (messages that write)", func(f *figures) string {
		return fmt.Sprintf("%.2f (%d)", f.WholePlanAgain, f.WholePlanAgainMsgs)
	})
	row("resident, peak MiB", func(f *figures) string { return fmt.Sprintf("%.0f, %.0f", f.Resident, f.Peak) })
}
