package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

// markdown returns a table with a row for each scenario, the proxies one below the other.
func markdown(rows []*row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s, %s.\n\n| | proxy | connections | failed | %% | how | last failure, s | |\n|---|---|---|---|---|---|---|---|\n",
		benchutil.DescribeMachine(), time.Now().UTC().Format(time.DateOnly))
	var names []string
	byName := map[string][]*row{}
	for _, r := range rows {
		if byName[r.name] == nil {
			names = append(names, r.name)
		}
		byName[r.name] = append(byName[r.name], r)
	}
	for _, name := range names {
		title := name
		for _, r := range byName[name] {
			failed := r.Result.Failed.Total()
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %.2f | %s | %s | %s |\n", title, r.Proxy, r.Result.Connections, failed,
				100*float64(failed)/float64(max(1, r.Result.Connections)), r.kinds(), lastFailure(r), r.Note)
			title = ""
		}
	}
	return b.String()
}

func lastFailure(r *row) string {
	if r.Result.Failed.Total() == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", r.repaired().Seconds())
}
