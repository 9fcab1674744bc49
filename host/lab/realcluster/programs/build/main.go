// Command build builds what the nodes of a real cluster need, unless it has been built already, and prints the folders. With the
// argument "suite", Kubernetes' network tests too; with the names of network plugins, these. With -missing it prints what is not
// there, but of network plugins, and builds nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
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
	withSuite := slices.Contains(args, "suite")
	networks := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "suite" })
	if missing {
		_, err := programs.Find()
		if err = name(err); err == nil && withSuite {
			_, err = programs.FindSuite()
			err = name(err)
		}
		return err
	}
	set, err := programs.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s\n%s\n%s\n", set.Bin, set.Debian, set.Images, set.Load)
	if withSuite {
		suite, err := programs.BuildSuite(ctx, os.Stderr)
		if err != nil {
			return err
		}
		fmt.Printf("%s\n%s\n", suite.Bin, suite.Images)
	}
	for _, n := range networks {
		network, err := programs.BuildNetwork(ctx, os.Stderr, n)
		if err != nil {
			return err
		}
		fmt.Println(network.Images)
	}
	return nil
}

// name prints what is missing. Another error is returned.
func name(err error) error {
	var lacks *programs.Missing
	if !errors.As(err, &lacks) {
		return err
	}
	fmt.Println(strings.Join(lacks.Names, "\n"))
	return nil
}
