package benchutil

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// RunInNamespace runs f in a network namespace of its own, until it ends or the process is interrupted.
func RunInNamespace(f func(ctx context.Context) error) error {
	if err := testnet.Enter(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return f(ctx)
}
