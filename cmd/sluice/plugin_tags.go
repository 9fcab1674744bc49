package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newPluginTagsCommand() *cobra.Command {
	var flags registryFlags
	cmd := &cobra.Command{
		Use:   "tags REGISTRY/NAME",
		Short: "List the tags of a plugin in a registry",
		Long: `Lists the tags of an image, and for each the digest that it has now, as plugins[].image has it. Tags of signatures are left out. At most 1000
tags are listed; with more, nothing is.`,
		Example: "  sluice plugin tags registry.example.com/acme/near",
		Args:    oneArg("image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := imageref.Parse(args[0])
			of, ok := imageref.IsTag(err)
			if !ok || of.Tag != "" {
				return usageError{fmt.Errorf("plugin tags: %s: want REGISTRY/NAME, without a tag or digest", args[0])}
			}
			client, err := flags.client()
			if err != nil {
				return fmt.Errorf("plugin tags: %w", err)
			}
			tags, refs, err := client.Tags(cmd.Context(), of)
			if err != nil {
				return fmt.Errorf("plugin tags: %w", err)
			}
			w := printer.NewTable(cmd.OutOrStdout())
			fmt.Fprintln(w, "TAG\tIMAGE")
			for i, tag := range tags {
				fmt.Fprintf(w, "%s\t%s\n", printable.Escape(tag), printable.Escape(refs[i].String()))
			}
			return w.Flush()
		},
	}
	flags.register(cmd)
	return cmd
}

func newPluginUntagCommand() *cobra.Command {
	var flags registryFlags
	cmd := &cobra.Command{
		Use:   "untag REGISTRY/NAME:TAG",
		Short: "Delete a tag of a plugin in a registry",
		Long: `Deletes a tag. The image stays in the registry by its digest, which configurations have, and by its other tags, until the registry collects
what has no tag. Some registries do not delete tags.`,
		Example: "  sluice plugin untag registry.example.com/acme/near:v1",
		Args:    oneArg("image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			tag, err := parseTag(args[0])
			if err != nil {
				return usageError{fmt.Errorf("plugin untag: %w", err)}
			}
			client, err := flags.client()
			if err != nil {
				return fmt.Errorf("plugin untag: %w", err)
			}
			if err := client.Untag(cmd.Context(), tag); err != nil {
				return fmt.Errorf("plugin untag: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "deleted %s\n", printable.Escape(args[0]))
			return err
		},
	}
	flags.register(cmd)
	return cmd
}
