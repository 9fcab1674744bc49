// Package benchutil is shared by the benchmark programs: a description of the machine, CPU and memory of processes,
// summaries of measured values, and tables in a README.
package benchutil

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// DescribeMachine returns CPUs, kernel and Go version of this machine.
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

// Publish prints tables and, unless file is "", writes them to the file between the markers of name.
func Publish(file, name string, tables []byte) error {
	if _, err := os.Stdout.Write(tables); err != nil || file == "" {
		return err
	}
	return Splice(file, name, tables)
}

// Splice replaces the text of a file between <!-- name: begin --> and <!-- name: end -->.
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
