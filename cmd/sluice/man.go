//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// The command man is in no release: make man builds it to write the man pages.
func init() {
	buildCommands = append(buildCommands, func() *cobra.Command {
		return &cobra.Command{
			Use: "man DIRECTORY", Hidden: true, Args: oneArg("directory"),
			RunE: func(cmd *cobra.Command, args []string) error {
				if err := os.MkdirAll(args[0], 0o755); err != nil {
					return err
				}
				cmd.Root().DisableAutoGenTag = true
				return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "8", Source: "sluice", Manual: "sluice"}, args[0])
			},
		}
	})
}
