// Command build builds what the nodes of a real cluster need, unless it has been built already, and prints the folders. With the
// argument "suite", Kubernetes' network tests too. With -missing it prints what is not there, and builds nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missing := flag.Bool("missing", false, "print what has not been built, and build nothing")
	flag.Parse()
	if err := run(ctx, *missing, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, missing bool, args []string) error {
	find, build := programs.Find, programs.Build
	switch {
	case len(args) == 1 && args[0] == "suite":
		find, build = programs.FindSuite, programs.BuildSuite
	case len(args) > 0:
		return fmt.Errorf("%s: unknown; the only argument is suite", strings.Join(args, " "))
	}
	set, err := find()
	var lacks *programs.Missing
	switch {
	case errors.As(err, &lacks) && missing:
		fmt.Println(strings.Join(lacks.Names, "\n"))
		return nil
	case errors.As(err, &lacks):
		if set, err = build(ctx, os.Stderr); err != nil {
			return err
		}
	case err != nil || missing:
		return err
	}
	fmt.Printf("%s\n%s\n%s\n", set.Bin, set.Debian, set.Images)
	return nil
}
