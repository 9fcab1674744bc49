// Command build builds the programs that the cluster tests need, unless they have been built already, and prints the folder
// they are in. Without arguments: what a cluster needs. kube-proxy, which only benchmarks need, has to be named. With
// -missing it prints the names of those that are not there, and builds nothing.
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

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missing := flag.Bool("missing", false, "print the programs that have not been built, and build nothing")
	flag.Parse()
	names := flag.Args()
	if len(names) == 0 {
		names = binaries.Cluster()
	}
	if *missing {
		_, err := binaries.Find(names...)
		var lacks *binaries.Missing
		if errors.As(err, &lacks) {
			fmt.Println(strings.Join(lacks.Names, "\n"))
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			stop()
			os.Exit(1)
		}
		return
	}
	dir, err := binaries.Build(ctx, os.Stderr, names...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
	fmt.Println(dir)
}
