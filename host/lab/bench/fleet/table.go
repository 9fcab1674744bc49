package fleet

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
	fmt.Fprintf(w, "Machine: %s; etcd, the API server and all agents run on it. %d agents, %d Services of %d endpoints. All values are measured.\n",
		r.Machine, r.agents, r.services, r.endpoints)
	var watches []string
	for _, name := range slices.Sorted(maps.Keys(r.Watches)) {
		watches = append(watches, fmt.Sprintf("%s %.2g", name, float64(r.Watches[name])/n))
	}
	fmt.Fprintf(w, "\nAn agent has %.3g TCP connection to the API server and these watches: %s.\n\n", float64(r.Connections)/n, strings.Join(watches, ", "))

	fmt.Fprintln(w, "| start of all agents | last agent synced after, s | API server CPU per agent, s | API server memory after the start (peak), MiB | received per agent, MiB | agent CPU, s | agent memory, MiB |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, s := range r.Starts {
		fmt.Fprintf(w, "| %s | %.1f | %.4f | %.0f (%.0f) | %.2f | %.2f | %.0f |\n",
			s.Name, s.Took, s.CPU/n, s.Resident, s.Peak, s.Bytes/n/mib, s.AgentCPU, s.Agent)
	}
	fmt.Fprintf(w, "\nWithout agents the API server uses %.0f MiB and %.3f CPUs; with all agents and no changes, %.3f CPUs.\n\n", r.MemoryBefore, r.IdleCPU, r.IdleWithAgents)

	fmt.Fprintln(w, "| change of one endpoint | changes/s | API server CPU per change without agents, ms | with all agents, ms | CPU per agent and change, µs | received per agent, bytes |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|")
	for _, c := range []struct {
		name       string
		bare, with updateResult
	}{
		{fmt.Sprintf("in a slice of %d", r.endpoints), r.WithoutAgents[0], r.SmallSlice},
		{fmt.Sprintf("in a slice of %d", perSlice), r.WithoutAgents[1], r.BigSlice},
	} {
		bare, with := 1000*c.bare.CPU/float64(c.bare.Updates), 1000*c.with.CPU/float64(c.with.Updates)
		fmt.Fprintf(w, "| %s | %.1f | %.2f | %.2f | %.1f | %.0f |\n", c.name, c.with.Rate, bare, with, 1e6*cpuPerAgent(c.bare, c.with, r.agents), c.with.Bytes/n/float64(c.with.Updates))
	}
	fmt.Fprintf(w, "\nTime from the write of a single change until the last agent has programmed it: median %.1f ms, maximum %.1f ms of %d.\n",
		r.Single.Median, r.Single.Max, r.Single.N)
	if r.Restart.Took == 0 {
		fmt.Fprintf(w, "\nAPI server killed and restarted: not measured, because not all agents reconnected in time on this machine.\n")
		r.printExtrapolation(w, r.agents, 1000, 5000)
		return
	}
	fmt.Fprintf(w, "\nAPI server killed and restarted: all watches are re-established %.1f s after it is ready. Until then it uses %.1f CPU s, including its own start, and at most %.0f MiB; each agent receives %.3f MiB.\n",
		r.Restart.Took, r.Restart.CPU, r.Restart.Peak, r.Restart.Bytes/n/mib)
	r.printExtrapolation(w, r.agents, 1000, 5000)
}
