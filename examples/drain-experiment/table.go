package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// columns of the table: title and width, to the right if positive.
var columns = []struct {
	title string
	width int
}{
	{"EXPERIMENT", -16}, {"POLICY AND PODS", -24}, {"CONNECTIONS", 11}, {"FAILED", 7}, {"%", 7}, {"REFUSED", 7}, {"RESET", 7}, {"HUNG", 6}, {"OTHER", 5},
	{"MOVED", 6}, {"MOST", 5}, {"NEW", 5}, {"SECONDS", 7},
}

func line(cells ...string) string {
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "%*s  ", columns[i].width, c)
	}
	return strings.TrimRight(b.String(), " ")
}

func header() string {
	var titles []string
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	return line(titles...)
}

// row returns the line of a result.
func (r *result) row() string {
	n, failed := r.connections(), r.failedTotal()
	return line(r.group, r.name, fmt.Sprint(n), fmt.Sprint(failed), fmt.Sprintf("%.3f", 100*float64(failed)/float64(max(1, n))),
		fmt.Sprint(r.total[refused]), fmt.Sprint(r.total[reset]), fmt.Sprint(r.total[hung]), fmt.Sprint(r.total[unreachable]),
		fmt.Sprint(r.shed), fmt.Sprint(r.most()), fmt.Sprintf("%.0f %%", 100*r.newShare(r.servers)), fmt.Sprintf("%.0f", r.took.Seconds()))
}

// machine describes this machine.
func machine() string {
	cpu := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d × %s, Linux %s, %s", runtime.NumCPU(), cpu, strings.TrimSpace(string(kernel)), time.Now().Format("2006-01-02"))
}
