package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// cells are what the table says of runs: the columns after the proxy's.
type cells map[key]string

// published returns the cells of the table in a document, under its marker; "" has none.
func published(file, name string) (cells, error) {
	table, err := benchutil.Published(file, name)
	if err != nil {
		return nil, err
	}
	out, title := cells{}, ""
	for line := range strings.Lines(table) {
		c := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 4)
		if len(c) < 4 {
			continue
		}
		if t := strings.TrimSpace(c[1]); t != "" {
			title = t
		}
		out[key{title, realcluster.Proxy(strings.TrimSpace(c[2]))}] = c[3]
	}
	return out, nil
}

// add adds rows, in place of those of the same name and proxy.
func (c cells) add(rows results) {
	for k, r := range rows {
		failed := r.Result.Failed.Total()
		c[k] = fmt.Sprintf(" %d | %d | %.2f | %s | %s | %s |", r.Result.Connections, failed, 100*float64(failed)/float64(max(1, r.Result.Connections)),
			r.kinds(), lastFailure(r), r.Note)
	}
}

// markdown returns a table with a row for each scenario, the proxies one below the other.
func (c cells) markdown(list []*scenario) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s, %s.\n\n| | proxy | connections | failed | %% | how | last failure, s | |\n|---|---|---|---|---|---|---|---|\n",
		benchutil.DescribeMachine(), time.Now().UTC().Format(time.DateOnly))
	for _, s := range list {
		title := s.name
		for _, p := range proxies {
			if text, ok := c[key{s.name, p}]; ok {
				fmt.Fprintf(&b, "| %s | %s |%s\n", title, p, text)
				title = ""
			}
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
