package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// marker is the name of the tables in the document.
const marker = "e2e"

// tables are what the document says of all runs: earlier ones, whose reports may be gone, and new ones.
type tables struct {
	rows  []row
	cells map[column]map[string]string // by spec
}

// column is a column of the table of specs.
type column struct{ cluster, proxy string }

// row is a run. Its cells are those after the column's: proxy and mode, counts, time, and so on.
type row struct {
	column
	part  string // the flags of a run of a part of the suite; "": all of it
	cells []string
}

// readTables returns the tables of a document; "" has none.
func readTables(file string) (*tables, error) {
	t := &tables{cells: map[column]map[string]string{}}
	text, err := benchutil.Published(file, marker)
	if err != nil {
		return nil, err
	}
	parts := map[string]string{}
	var columns []column
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			if number, flags, ok := strings.Cut(strings.TrimSpace(line), ". `"); ok {
				parts["part "+number] = strings.TrimSuffix(flags, "`")
			}
			continue
		}
		c := cellsOf(line)
		switch {
		case strings.HasPrefix(c[0], "---") || c[0] == "cluster":
		case c[0] == "spec":
			for _, title := range c[1:] {
				cluster, proxy, _ := strings.Cut(title, ", ")
				columns = append(columns, column{cluster, proxy})
			}
		case columns == nil && len(c) < 4:
			return nil, fmt.Errorf("%s: %d cells are not a run: %s", file, len(c), line)
		case columns == nil: // a run
			proxy, _, _ := strings.Cut(c[1], " ")
			t.rows = append(t.rows, row{column{c[0], proxy}, c[2], slices.Concat(c[1:2], c[3:])})
		case len(c) != len(columns)+1:
			return nil, fmt.Errorf("%s: %d cells, want %d: %s", file, len(c), len(columns)+1, line)
		default:
			for i, cell := range c[1:] {
				t.set(columns[i], c[0], cell)
			}
		}
	}
	for i, r := range t.rows { // their flags are below the table
		flags, ok := parts[r.part]
		if !ok && r.part != "all" {
			return nil, fmt.Errorf("%s: %s, %s: it does not say what %q is", file, r.cluster, r.proxy, r.part)
		}
		t.rows[i].part = flags
	}
	return t, nil
}

// cellsOf returns the cells of a line of a table.
func cellsOf(line string) (cells []string) {
	const escaped = "\x00"
	line = strings.Trim(strings.ReplaceAll(strings.TrimSpace(line), `\|`, escaped), "|")
	for c := range strings.SplitSeq(line, "|") {
		cells = append(cells, strings.TrimSpace(strings.ReplaceAll(c, escaped, "|")))
	}
	return cells
}

func (t *tables) set(c column, spec, cell string) {
	if cell == "" {
		return
	}
	if t.cells[c] == nil {
		t.cells[c] = map[string]string{}
	}
	t.cells[c][spec] = cell
}

// add adds a run: in place of an earlier one of the same part, or, if it is of the whole suite, of all of its column.
func (t *tables) add(r run) {
	c, part := column{r.cluster(), r.Proxy}, r.part()
	t.rows = slices.DeleteFunc(t.rows, func(x row) bool { return x.column == c && (part == "" || x.part == part) })
	if part == "" {
		delete(t.cells, c)
	}
	n := map[string]int{}
	for name, s := range r.specs {
		n[s.state]++
		t.set(c, name, s.String())
	}
	proxy := strings.TrimSpace(r.Proxy + " " + r.Version)
	if r.Mode != "" {
		proxy += ", mode " + r.Mode
	}
	cells := []string{proxy}
	for _, x := range []any{n[passed], len(r.specs) - n[passed] - n[skipped], n[skipped], r.Took, r.Workers, r.Kernel, r.Began.Format(time.DateOnly)} {
		cells = append(cells, fmt.Sprint(x))
	}
	t.rows = append(t.rows, row{c, part, cells})
	families := []realcluster.Family{realcluster.IPv4, realcluster.Dual, realcluster.IPv6}
	family := func(x row) int {
		name, _, _ := strings.Cut(x.cluster, "-")
		return slices.Index(families, realcluster.Family(name))
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(family(a), family(b)), strings.Compare(a.cluster, b.cluster), strings.Compare(a.proxy, b.proxy))
	})
}

// columns are those that have run, in the order of the rows.
func (t *tables) columns() (all []column) {
	for _, r := range t.rows {
		if !slices.Contains(all, r.column) {
			all = append(all, r.column)
		}
	}
	return all
}

// specs returns the names of all specs that ran anywhere.
func (t *tables) specs() []string {
	names := map[string]bool{}
	for _, specs := range t.cells {
		for name := range specs {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// compare returns an error if kube-proxy passes a spec that sluice does not pass in the same kind of cluster: how sluice ended
// each of them.
func (t *tables) compare() error {
	var worse []error
	passes := func(cell string) bool { return cell == passed || strings.HasPrefix(cell, passed+",") }
	for _, c := range t.columns() {
		if c.proxy != string(realcluster.Sluice) {
			continue
		}
		for _, name := range t.specs() {
			peer, mine := t.cells[column{c.cluster, string(realcluster.KubeProxy)}][name], t.cells[c][name]
			if passes(peer) && !passes(mine) {
				worse = append(worse, fmt.Errorf("%s, %s: %s", c.cluster, cmp.Or(strings.Trim(mine, "*"), "not run"), name))
			}
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("%d specs that kube-proxy passes and sluice does not:\n%w", len(worse), errors.Join(worse...))
	}
	return nil
}

// markdown returns the tables. The flags of parts are listed between them.
func (t *tables) markdown() string {
	var b strings.Builder
	fmt.Fprint(&b, "| cluster | proxy | specs | passed | failed | skipped themselves | time | workers | Linux | date |\n|---|---|---|---|---|---|---|---|---|---|\n")
	var parts []string
	for _, r := range t.rows {
		part := "all"
		if r.part != "" {
			if !slices.Contains(parts, r.part) {
				parts = append(parts, r.part)
			}
			part = fmt.Sprint("part ", slices.Index(parts, r.part)+1)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.cluster, r.cells[0], part, strings.Join(r.cells[1:], " | "))
	}
	if len(parts) > 0 {
		fmt.Fprint(&b, "\nParts of the suite:\n\n")
	}
	for i, part := range parts {
		fmt.Fprintf(&b, "%d. `%s`\n", i+1, part)
	}
	if err := t.compare(); err != nil {
		fmt.Fprintf(&b, "\n%s\n\n| spec |", strings.ReplaceAll(err.Error(), "\n", "\n- "))
	} else {
		fmt.Fprint(&b, "\nsluice passes every spec that kube-proxy passes.\n\n| spec |")
	}
	columns := t.columns()
	for _, c := range columns {
		fmt.Fprintf(&b, " %s, %s |", c.cluster, c.proxy)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, name := range t.specs() {
		fmt.Fprintf(&b, "| %s |", strings.ReplaceAll(name, "|", `\|`))
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", t.cells[c][name])
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// String returns the cell of a spec.
func (s spec) String() string {
	switch {
	case s.state == passed && s.attempts > 1:
		return fmt.Sprintf("passed, attempt %d", s.attempts)
	case s.state == passed, s.state == skipped:
		return s.state
	}
	return "**" + s.state + "**"
}
