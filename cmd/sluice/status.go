package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

func newStatusCommand() *cobra.Command {
	var output, socket string
	var fail failOn
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the sluice that runs on this node",
		Long: `Prints on one screen: version, mode, node, since when the kernel is in sync, sizes, the configuration in force, the contact
with the API server, repairs, drains, and what is failing or degraded, each with what to look at next.

The exit code is 0 if nothing is failing, 3 if something is (see --fail-on), and 1 if no sluice answers.`,
		Example: "  sluice status\n  sluice status -o json --fail-on failing,degraded",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			if err := fail.check(); err != nil {
				return err
			}
			s, err := stateclient.OnSocket(socket).Status(cmd.Context())
			if err != nil {
				return notRunning(err)
			}
			if output != "text" {
				err = printer.Object(cmd.OutOrStdout(), output, s)
			} else {
				err = printer.Status(cmd.OutOrStdout(), s)
			}
			if err != nil {
				return err
			}
			return fail.errorOf(api.Texts(s.Failing), api.Texts(s.Degraded))
		},
	}
	fail.register(cmd)
	fail = failOn{onFailing}
	cmd.Flags().Lookup("fail-on").DefValue = "[" + onFailing + "]"
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	registerSocket(cmd, &socket)
	return cmd
}

// notRunning adds what to do to the error of a request, if no sluice answers.
func notRunning(err error) error {
	var down *stateclient.NotRunningError
	if errors.As(err, &down) {
		return fmt.Errorf("%w; set --socket, or look at the log of its Pod or unit: the kernel keeps forwarding meanwhile", err)
	}
	return err
}
