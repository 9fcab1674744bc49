// Command build builds the programs that the cluster tests need, unless they are there already, and prints the folder
// they are in. Without arguments: what a cluster needs. kube-proxy, which only benchmarks need, has to be named.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	names := os.Args[1:]
	if len(names) == 0 {
		names = binaries.Cluster()
	}
	dir, err := binaries.Build(ctx, os.Stderr, names...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
	fmt.Println(dir)
}
