package fleet

import (
	"fmt"
	"io"
)

// manyServices is the size of the largest clusters.
const manyServices = 50_000

// extrapolation has values for a number of nodes, computed from the measured cost per agent.
type extrapolation struct {
	Nodes            int
	Watches          int
	StartGiB         float64 // to all nodes, when all start
	StartCPU         float64 // s of the API servers'
	MemoryGiB        float64 // of the API servers', for connections and watches
	SmallRate        float64 // changes per second that one API server CPU distributes to all nodes
	SmallMbit        float64 // to all nodes, at one change a second
	BigRate, BigMbit float64
}

func (r *results) extrapolate(nodes int) extrapolation {
	agents := float64(r.agents)
	all := float64(nodes)
	last := r.Starts[len(r.Starts)-1] // all at once
	c := extrapolation{
		Nodes:     nodes,
		StartGiB:  all * last.Bytes / agents / (1 << 30),
		StartCPU:  all * last.CPU / agents,
		MemoryGiB: all * max(last.Resident-r.MemoryBefore, 0) / agents / 1024,
	}
	for _, n := range r.Watches {
		c.Watches += n * nodes / r.agents
	}
	one := func(bare, with updateResult) (rate, mbit float64) {
		cpu := cpuPerAgent(bare, with, r.agents) * all
		return 1 / max(cpu, 1e-9), all * with.Bytes / agents / float64(with.Updates) * 8 / 1e6
	}
	c.SmallRate, c.SmallMbit = one(r.WithoutAgents[0], r.SmallSlice)
	c.BigRate, c.BigMbit = one(r.WithoutAgents[1], r.BigSlice)
	return c
}

// cpuPerAgent returns the API server's CPU seconds per update and agent. Noise does not make it negative.
func cpuPerAgent(bare, with updateResult, agents int) float64 {
	return max(with.CPU/float64(with.Updates)-bare.CPU/float64(bare.Updates), 0) / float64(agents)
}

func (r *results) printExtrapolation(w io.Writer, sizes ...int) {
	fmt.Fprint(w, "\n**Extrapolation to more nodes.** All values are computed: the measured cost per agent times the number of nodes.\n\n")
	row := func(name string, cell func(c extrapolation) string) {
		fmt.Fprintf(w, "| %s |", name)
		for _, n := range sizes {
			fmt.Fprintf(w, " %s |", cell(r.extrapolate(n)))
		}
		fmt.Fprintln(w)
	}
	row("nodes", func(c extrapolation) string { return fmt.Sprint(c.Nodes) })
	fmt.Fprint(w, "|---|")
	for range sizes {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
	row("connections, watches", func(c extrapolation) string { return fmt.Sprint(c.Nodes, ", ", c.Watches) })
	row("API servers' memory for them, GiB", func(c extrapolation) string { return fmt.Sprintf("%.2f", c.MemoryGiB) })
	row("start of all nodes: sent to all, GiB", func(c extrapolation) string { return fmt.Sprintf("%.1f", c.StartGiB) })
	row("… at 10 Gbit/s, s", func(c extrapolation) string { return fmt.Sprintf("%.0f", c.StartGiB*(1<<30)*8/10e9) })
	row("… API servers' CPU, s (on 48 CPUs, s)", func(c extrapolation) string { return fmt.Sprintf("%.0f (%.1f)", c.StartCPU, c.StartCPU/48) })
	more := manyServices / float64(r.services)
	row(fmt.Sprintf("with %d Services, as many times what %d take: sent to all, GiB (at 10 Gbit/s, s)", manyServices, r.services), func(c extrapolation) string {
		return fmt.Sprintf("%.0f (%.0f)", more*c.StartGiB, more*c.StartGiB*(1<<30)*8/10e9)
	})
	row("… API servers' CPU, s (on 48 CPUs, s)", func(c extrapolation) string { return fmt.Sprintf("%.0f (%.0f)", more*c.StartCPU, more*c.StartCPU/48) })
	row(fmt.Sprintf("slices of %d: changes/s per API server CPU", r.endpoints), func(c extrapolation) string { return fmt.Sprintf("%.1f", c.SmallRate) })
	row("… Mbit/s per change/s", func(c extrapolation) string { return fmt.Sprintf("%.0f", c.SmallMbit) })
	row(fmt.Sprintf("slices of %d: changes/s per API server CPU", perSlice), func(c extrapolation) string { return fmt.Sprintf("%.1f", c.BigRate) })
	row("… Mbit/s per change/s", func(c extrapolation) string { return fmt.Sprintf("%.0f", c.BigMbit) })
}
