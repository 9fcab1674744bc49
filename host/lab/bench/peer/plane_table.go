package peer

import (
	"fmt"
	"io"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// dataPlane has the results of the data plane at one size.
type dataPlane struct {
	Services int
	rows     []planeRow
}

// planeRow has the blocks of one rule for each address, of the other proxy, and of sluice.
type planeRow struct {
	way
	blocks [][]block
}

// printPlanes prints a table for each size.
func printPlanes(w io.Writer, r *results, planes []dataPlane) {
	fmt.Fprintf(w, "Machine: %s. %s.\n", r.Machine, strings.Join(r.Versions, "; "))
	for _, p := range planes {
		p.print(w, r)
	}
}

func (p *dataPlane) print(w io.Writer, r *results) {
	fmt.Fprintf(w, "\n**%s**, %d blocks of each value\n\n", describeSize(p.Services, r.Endpoints), len(p.rows[0].blocks[0]))
	fmt.Fprintf(w, "| median of blocks | one rule | %[1]s | sluice | sluice / one rule (95 %% CI) | sluice / %[1]s (95 %% CI) | noise: %[1]s / itself (95 %% CI) | beside %[1]s, sluice is |\n", r.Other)
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|")
	for _, row := range p.rows {
		for i, name := range row.workload.metrics {
			of := func(target int) []float64 { return stats.Of(row.blocks[target], func(b block) float64 { return b[i] }) }
			one, other, own := of(0), of(1), of(2)
			got, noise := stats.Ratios(other, own), stats.Noise(other)
			fmt.Fprintf(w, "| %s, %s: %s | %s | %s | %s | %s | %s | %s | %s |\n", row.name, row.workload.name, name,
				formatNumber(median(one)), formatNumber(median(other)), formatNumber(median(own)),
				stats.Ratios(one, own).Text(3), got.Text(3), noise.Text(3), verdict(got, noise, row.workload.more))
		}
	}
}
