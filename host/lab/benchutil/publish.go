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

// Published returns the text of a file between the markers of name; "" is no file, and nothing is published there.
func Published(file, name string) (string, error) {
	if file == "" {
		return "", nil
	}
	_, text, _, err := sections(file, name)
	return string(text), err
}

// Splice replaces the text of a file between <!-- name: begin --> and <!-- name: end -->.
func Splice(path, name string, text []byte) error {
	head, _, tail, err := sections(path, name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, bytes.Join([][]byte{head, text, tail}, nil), 0o644)
}

// sections cuts a file at the markers of name, which stay with what is around the text.
func sections(path, name string) (head, text, tail []byte, err error) {
	begin, end := []byte("<!-- "+name+": begin -->\n"), []byte("<!-- "+name+": end -->")
	all, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	at := bytes.Index(all, begin)
	if at < 0 {
		return nil, nil, nil, fmt.Errorf("%s: no marker %s", path, bytes.TrimSpace(begin))
	}
	at += len(begin)
	to := bytes.Index(all[at:], end)
	if to < 0 {
		return nil, nil, nil, fmt.Errorf("%s: no marker %s after %s", path, end, bytes.TrimSpace(begin))
	}
	return all[:at], all[at : at+to], all[at+to:], nil
}
