// Command bench measures sluice on this machine: what programming costs, from the event to the kernel's
// acknowledgement, in a network namespace of its own; what a policy costs for a whole cluster; what a plugin call
// costs. It prints Markdown tables; -write puts them into a file between its two markers.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/netlab"
)

var sizes = []size{{1000, 10}, {5000, 10}, {10000, 10}, {10000, 50}}

func main() {
	child := flag.String("size", "", "measure this size, such as 1000x10, in the present namespace, and print JSON")
	changes := flag.Int("changes", 200, "single changes of each kind to measure")
	bin := flag.String("bin", "bin", "folder of the modules that `make bench` builds")
	only := flag.Bool("calls", false, "measure plugin calls only")
	write := flag.String("write", "", "file to put the tables into, between the markers")
	flag.Parse()
	if err := run(*child, *changes, *bin, *write, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(child string, changes int, bin, write string, onlyCalls bool) error {
	ctx := context.Background()
	if child != "" {
		if !netlab.Inside() {
			code, err := netlab.Reexec()
			if err != nil {
				return err
			}
			os.Exit(code)
		}
		var s size
		if _, err := fmt.Sscanf(child, "%dx%d", &s.services, &s.endpoints); err != nil {
			return fmt.Errorf("-size %q: %w", child, err)
		}
		f, err := program(ctx, s, changes)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(f)
	}
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "Machine: %s.\n", machine())
	calls, err := callCosts(ctx, bin)
	if err != nil {
		return err
	}
	printCalls(out, calls)
	if onlyCalls {
		_, err := fmt.Print(out)
		return err
	}
	cost, err := policyCost(ctx, filepath.Join(bin, "plugins/zone-spill.wasm"), size{10000, 10})
	if err != nil {
		return err
	}
	cost.print(out)
	var all []figures
	for _, s := range sizes {
		f, err := inChild(s, changes)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	printProgramming(out, all)
	fmt.Print(out)
	if write != "" {
		return splice(write, out.Bytes())
	}
	return nil
}

// inChild measures a size in a process of its own, so that its memory is its own.
func inChild(s size, changes int) (figures, error) {
	var f figures
	exe, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.Command(exe, "-size", s.String(), "-changes", fmt.Sprint(changes))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return f, fmt.Errorf("measuring %s: %w", s, err)
	}
	return f, json.Unmarshal(out, &f)
}

// machine names what the figures were measured on.
func machine() string {
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

// Markers around the tables in a README.
const begin, end = "<!-- bench: begin -->", "<!-- bench: end -->"

func splice(path string, tables []byte) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(old, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return errors.New(path + ": no markers " + begin + " and " + end)
	}
	text := bytes.Join([][]byte{head, []byte(begin + "\n"), tables, []byte(end), tail}, nil)
	return os.WriteFile(path, text, 0o644)
}
