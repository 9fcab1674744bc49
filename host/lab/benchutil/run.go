package benchutil

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// RunInNamespace runs a program that has network namespaces of its own, until it ends or is interrupted, and exits with 1 if it fails.
func RunInNamespace(name string, f func(ctx context.Context) error) {
	err := testnet.Enter()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = f(ctx)
		stop()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
