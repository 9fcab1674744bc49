package main

import (
	"fmt"
	"io"
)

func printProgramming(w io.Writer, all []programmingResult) {
	fmt.Fprint(w, "\n**Programming**, nftables, from the event to the kernel's acknowledgement, including planning\n\n")
	row := func(name string, cell func(f *programmingResult) string) {
		fmt.Fprintf(w, "| %s |", name)
		for i := range all {
			fmt.Fprintf(w, " %s |", cell(&all[i]))
		}
		fmt.Fprintln(w)
	}
	row("Services × endpoints", func(f *programmingResult) string { return f.Size })
	fmt.Fprint(w, "|---|")
	for range all {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
	row("cold start, wall (CPU), s", func(f *programmingResult) string { return fmt.Sprintf("%.2f (%.2f)", f.ColdStart, f.ColdStartCPU) })
	row("transactions, longest in ms", func(f *programmingResult) string { return fmt.Sprintf("%d, %.0f", f.Steps, f.Longest) })
	row("endpoint update, ms: median, p99", func(f *programmingResult) string {
		return fmt.Sprintf("%.3f, %.3f", f.Endpoint.Median, f.Endpoint.P99)
	})
	row("endpoint update, CPU ms (netlink messages, at most)", func(f *programmingResult) string {
		return fmt.Sprintf("%.3f (%d)", f.EndpointCPU, f.EndpointMessages)
	})
	row("deletion and creation of a Service, ms: median, p99", func(f *programmingResult) string {
		return fmt.Sprintf("%.3f, %.3f", f.Service.Median, f.Service.P99)
	})
	row("1,000 updates/s, ms: median, p99, max", func(f *programmingResult) string {
		return fmt.Sprintf("%.2f, %.2f, %.1f", f.Churn.Median, f.Churn.P99, f.Churn.Max)
	})
	row("1,000 updates/s, CPUs used (updates/s achieved)", func(f *programmingResult) string { return fmt.Sprintf("%.2f (%.0f)", f.ChurnCPU, f.ChurnRate) })
	row("idle, CPUs used", func(f *programmingResult) string { return fmt.Sprintf("%.4f", f.IdleCPU) })
	row("restart with existing rules, s (messages that write)", func(f *programmingResult) string {
		return fmt.Sprintf("%.2f (%d)", f.Restart, f.RestartMessages)
	})
	row("resident after start, MiB (live heap; peak)", func(f *programmingResult) string {
		return fmt.Sprintf("%.0f (%.0f; %.0f)", f.Start.Resident, f.Start.Live, f.Start.Peak)
	})
	row("resident after the updates, MiB (peak)", func(f *programmingResult) string {
		return fmt.Sprintf("%.0f (%.0f)", f.AfterChurn.Resident, f.AfterChurn.Peak)
	})
	row("CPUs used by other processes meanwhile", func(f *programmingResult) string { return fmt.Sprintf("%.2f", f.OtherCPU) })
}
