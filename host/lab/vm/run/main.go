// Command run builds the test kernels and runs programs on them; see the package vm.
//
//	run build [-newest] [6.1 6.12 arm64]                build what is not cached, print paths; by default 6.1 and 6.12
//	run build -missing [6.1 6.12 arm64]                 print what is not cached, build nothing
//	run exec [-kernel 6.12] [-timeout 45m] program ...  run a program; the exit code is the program's
//
// With -kernel arm64, the guest's init is this program for arm64, which is beside this one, with -arm64 after its name.
//
// As `go test -exec 'run exec -kernel 6.1' ./...` it runs tests there. Of /tmp and /run, the guest sees the program's
// folder, the module that the working folder is in, and what -share names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/vm"
)

func main() {
	vm.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 2, errors.New("usage: run build|exec ...")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "build":
		newest := flags.Bool("newest", false, "build the version that apt offers now, though another is cached")
		missing := flags.Bool("missing", false, "print the series that are not cached, and build nothing")
		if err := flags.Parse(args[1:]); err != nil {
			return 2, nil
		}
		series := flags.Args()
		if len(series) == 0 {
			series = vm.Series()
		}
		for _, s := range series {
			if *missing {
				path, err := vm.Cached(s)
				if err != nil {
					return 1, err
				}
				if path == "" {
					fmt.Println(s)
				}
				continue
			}
			path, err := vm.Build(ctx, s, *newest, os.Stderr)
			if err != nil {
				return 1, err
			}
			fmt.Println(path)
		}
		return 0, nil
	case "exec":
		series := vm.Series()
		kernel := flags.String("kernel", series[len(series)-1], "which: "+strings.Join(append(series, vm.Arm64), ", "))
		memory := flags.Int("memory", 0, "MiB; 0 means 512")
		share := []string{moduleRoot()}
		flags.Func("share", "a folder that the guest is to see, if it is in /tmp or /run; may be repeated", func(path string) error {
			share = append(share, path)
			return nil
		})
		tap := flags.String("tap", "", "a tap device, which becomes the guest's link vec0")
		timeout := flags.Duration("timeout", 45*time.Minute, "end everything after this time")
		if err := flags.Parse(args[1:]); err != nil {
			return 2, nil
		}
		path, err := vm.Cached(*kernel)
		if err != nil {
			return 1, err
		}
		if path == "" {
			return 1, fmt.Errorf("vm: there is no kernel %s yet: make vm-kernels, make vm-arm64", *kernel)
		}
		init := ""
		if *kernel == vm.Arm64 && runtime.GOARCH != vm.Arm64 {
			self, err := os.Executable()
			if err != nil {
				return 1, err
			}
			init = self + "-" + vm.Arm64
		}
		ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done within %s", *timeout))
		defer cancel()
		return vm.Run(ctx, vm.Job{Kernel: path, Init: init, Memory: *memory, Tap: *tap, Args: flags.Args(), Share: share, Out: os.Stdout})
	default:
		return 2, fmt.Errorf("no command %q: build, exec", args[0])
	}
}

// moduleRoot is the folder of the module that the working folder is in; without one, the working folder.
func moduleRoot() string {
	here, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir := here; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return here
}
