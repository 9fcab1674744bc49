package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
)

func newCleanupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that sluice owns from this kernel",
		Long: `Removes sluice's nftables tables, and nothing else. Established connections go on as long as the kernel tracks
them; new ones no longer find a Service.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return nftables.Cleanup(cmd.Context(), nftables.Options{Now: time.Now})
		},
	}
}
