package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
)

func newCleanupCommand() *cobra.Command {
	var kube bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that sluice owns from this kernel",
		Long: `Removes sluice's nftables tables, its IPVS virtual servers, its link and its addresses on any other link, and nothing
else. Established connections go on as long as the kernel tracks them; new ones no longer find a Service. The settings
of the connection table stay as they are.

With --kube-proxy it removes what kube-proxy has left instead, and nothing of sluice's: its nftables tables, its
iptables chains with the rules that lead to them, and its IPVS servers, link and sets.

Neither is done while what would write it back is running.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if kube {
				if err := kubeproxy.RequireStopped(ctx, "it would write back what is removed"); err != nil {
					return err
				}
				removed, err := kubeproxy.Remove(ctx)
				for _, l := range removed {
					fmt.Fprintln(cmd.OutOrStdout(), "removed", l)
				}
				return err
			}
			unlock, err := agent.LockDataPlane(slog.Default())
			if err != nil {
				return err
			}
			defer unlock()
			removed, err := dataplane.All().Cleanup(ctx)
			for _, what := range removed {
				fmt.Fprintln(cmd.OutOrStdout(), "removed", what)
			}
			if err == nil && len(removed) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&kube, "kube-proxy", false, "remove what kube-proxy has left, and nothing of sluice's")
	return cmd
}
