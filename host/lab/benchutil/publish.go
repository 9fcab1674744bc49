// Package benchutil is what the programs that measure have in common: naming the machine, a process's use of it, spreads
// of times, and tables in a README.
package benchutil

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DescribeMachine names what figures were measured on.
func DescribeMachine() string {
	model := "unknown CPU"
	text, _ := os.ReadFile("/proc/cpuinfo")
	for l := range strings.Lines(string(text)) {
		if name, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(v)
			break
		}
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%d × %s, Linux %s, %s", runtime.NumCPU(), model, unix.ByteSliceToString(u.Release[:]), runtime.Version())
}

// Publish prints tables, and puts them into a file between the markers of a name; with file "" it prints only.
func Publish(file, name string, tables []byte) error {
	if _, err := os.Stdout.Write(tables); err != nil || file == "" {
		return err
	}
	return Splice(file, name, tables)
}

// Splice replaces what a file has between <!-- name: begin --> and <!-- name: end -->.
func Splice(path, name string, text []byte) error {
	begin, end := "<!-- "+name+": begin -->", "<!-- "+name+": end -->"
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(old, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s: no markers %s and %s", path, begin, end)
	}
	all := bytes.Join([][]byte{head, []byte(begin + "\n"), text, []byte(end), tail}, nil)
	return os.WriteFile(path, all, 0o644)
}

// Summary is the median, the 99th percentile and the largest of some values; all 0 of none.
type Summary struct {
	N                int
	Median, P99, Max float64
}

// Summarize works out a spread. It sorts the values.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	slices.Sort(values)
	return Summary{len(values), Quantile(values, 0.5), Quantile(values, 0.99), values[len(values)-1]}
}

// Quantile of values that are sorted, at least one: the mean of the two in the middle where q is between them.
func Quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
