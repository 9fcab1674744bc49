package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/kubeproxy"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newCleanupCommand() *cobra.Command {
	var kubeProxy bool
	var nodePorts string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that sluice has programmed in the kernel",
		Long: `Removes sluice's nftables tables, IPVS virtual servers, dummy interface and addresses on other interfaces, and nothing
else. Established connections continue while the kernel tracks them; new ones no longer reach a Service. Sysctls are not
reset.

With --kube-proxy, removes what kube-proxy has left instead: its nftables tables, its iptables chains with the rules that
jump to them, and its IPVS virtual servers, dummy interface and ipsets.

It fails while sluice, or with --kube-proxy kube-proxy, is running.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if kubeProxy {
				if err := kubeproxy.RequireStopped(ctx, "it would restore what is removed"); err != nil {
					return err
				}
				var ports config.PortRange
				err := ports.UnmarshalText([]byte(nodePorts))
				if err != nil {
					return fmt.Errorf("--node-port-range: %w", err)
				}
				removed, err := kubeproxy.Remove(ctx, kubeproxy.PortRange(ports))
				printRemoved(cmd.OutOrStdout(), removed, err)
				return err
			}
			unlock, err := agent.LockDataPlane()
			if err != nil {
				return err
			}
			defer unlock()
			if wait > 0 {
				waiting, stop := context.WithTimeoutCause(ctx, wait, fmt.Errorf("not within %s", wait))
				if err := agent.WaitForKubeProxy(waiting); err != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "removed without waiting longer: %s\n", printable.Escape(err.Error()))
				}
				stop()
			}
			removed, err := dataplane.All().Cleanup(ctx)
			printRemoved(cmd.OutOrStdout(), removed, err)
			return err
		},
	}
	cmd.Flags().BoolVar(&kubeProxy, "kube-proxy", false, "remove what kube-proxy has left instead of what sluice has programmed")
	cmd.Flags().StringVar(&nodePorts, "node-port-range", config.Default().NodePortRange.String(), "the API server's --service-node-port-range, for --kube-proxy")
	flagrange.Duration(cmd.Flags(), &wait, "wait-for-kube-proxy", 0, 0, time.Hour, "wait at most this long until kube-proxy has programmed all Services, before removing what sluice has programmed")
	return cmd
}

func printRemoved[T any](w io.Writer, removed []T, err error) {
	for _, object := range removed {
		fmt.Fprintln(w, "removed", printable.Escape(fmt.Sprint(object)))
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(w, "nothing to remove")
	}
}
