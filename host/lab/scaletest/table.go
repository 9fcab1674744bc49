package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const mib = 1 << 20

func (r *results) print(w io.Writer) {
	n := float64(r.agents)
	fmt.Fprintf(w, "Machine: %s; etcd, API server and all agents on it. %d agents, %d Services of %d endpoints. All of this is measured.\n",
		r.Machine, r.agents, r.services, r.endpoints)
	var watches []string
	for _, name := range slices.Sorted(maps.Keys(r.Watches)) {
		watches = append(watches, fmt.Sprintf("%s %.2g", name, float64(r.Watches[name])/n))
	}
	fmt.Fprintf(w, "\nAn agent has %.3g TCP connection to the API server and these watches: %s.\n\n", float64(r.Conns)/n, strings.Join(watches, ", "))

	fmt.Fprintln(w, "| start of all agents | until the last has synced, s | API server, CPU s an agent | its memory after (at most), MiB | MiB to an agent | an agent's CPU s | an agent's memory, MiB |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, s := range r.Starts {
		fmt.Fprintf(w, "| %s | %.1f | %.4f | %.0f (%.0f) | %.2f | %.2f | %.0f |\n",
			s.Name, s.Took, s.CPU/n, s.Resident, s.Peak, s.Bytes/n/mib, s.AgentCPU, s.Agent)
	}
	fmt.Fprintf(w, "\nWith no agent the API server has %.0f MiB and takes %.3f processors; with all of them, and nothing changing, %.3f.\n\n", r.Before, r.Idle, r.Settled)

	fmt.Fprintln(w, "| one endpoint changes | changes/s | API server, CPU ms a change, no agent | with all agents | CPU µs an agent and change | bytes to an agent |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, c := range []struct {
		name       string
		bare, with load
	}{
		{fmt.Sprintf("in a slice of %d", r.endpoints), r.Bare[0], r.Small},
		{fmt.Sprintf("in a slice of %d", perSlice), r.Bare[1], r.Big},
	} {
		bare, with := 1000*c.bare.CPU/float64(c.bare.Changes), 1000*c.with.CPU/float64(c.with.Changes)
		fmt.Fprintf(w, "| %s | %.1f | %.2f | %.2f | %.1f | %.0f |\n", c.name, c.with.Rate, bare, with, 1e6*perAgent(c.bare, c.with, r.agents), c.with.Bytes/n/float64(c.with.Changes))
	}
	fmt.Fprintf(w, "\nOne change at a time, from the write until the last agent has programmed it: median %.1f ms, slowest %.1f ms of %d.\n",
		r.Single.Median, r.Single.Max, r.Single.N)
	if r.Restart.Took == 0 {
		fmt.Fprintf(w, "\nAPI server killed and started again: not all agents were back in time on this machine: not measured.\n")
		r.printCarried(w, r.agents, 1000, 5000)
		return
	}
	fmt.Fprintf(w, "\nAPI server killed and started again: all watches are back %.1f s after it is ready; it has used %.1f CPU s by then, its own start included, and %.0f MiB at most; %.3f MiB went to an agent.\n",
		r.Restart.Took, r.Restart.CPU, r.Restart.Peak, r.Restart.Bytes/n/mib)
	r.printCarried(w, r.agents, 1000, 5000)
}
