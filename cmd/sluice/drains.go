package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

type drainsFlags struct {
	output, socket, namespace string
	watch, untilNone          bool
	interval                  time.Duration
}

func newDrainsCommand() *cobra.Command {
	var f drainsFlags
	cmd := &cobra.Command{
		Use:   "drains [-n NAMESPACE] [SERVICE]",
		Short: "Show which endpoints drain on this node, and how many connections they still have",
		Long: `Prints for each endpoint that drains on this node: since when, at which stage, its share of new connections, and how many
connections through this node it still has. It asks the sluice that is running on this node.

Stages: Serving (it still gets new connections), Draining (it gets none; established ones continue), Shedding (part of
its connections is reset each minute), Reset (its deadline has passed).`,
		Example: "  sluice drains\n  sluice drains -n shop catalog --watch",
		Args:    atMostOneArg("Service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(f.output, "text", "json", "yaml"); err != nil {
				return err
			}
			service := ""
			if len(args) == 1 {
				if service = args[0]; !strings.Contains(service, "/") {
					service = defaultNamespace(f.namespace) + "/" + service
				}
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), service)
		},
	}
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Services (default: all, or that of SERVICE is default)")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text, or json: with --watch one object per change")
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "print again whenever something changes, until interrupted")
	cmd.Flags().BoolVar(&f.untilNone, "until-none", false, "with --watch: end when nothing drains any more")
	flagrange.Duration(cmd.Flags(), &f.interval, "interval", 2*time.Second, minWatchInterval, 24*time.Hour, "with --watch: how often to look")
	registerSocket(cmd, &f.socket)
	return cmd
}

const minWatchInterval = 500 * time.Millisecond

func defaultNamespace(n string) string {
	if n == "" {
		return "default"
	}
	return n
}

func (f *drainsFlags) run(ctx context.Context, w io.Writer, service string) error {
	last := ""
	for {
		x, err := stateclient.OnSocket(f.socket).Drains(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil // interrupted
			}
			return notRunning(err)
		}
		x.Filter(f.namespace, service)
		if text := drainsKey(x); !f.watch || text != last {
			if last != "" && f.output == "text" {
				fmt.Fprintln(w)
			}
			last = text
			if err := f.print(w, x); err != nil {
				return err
			}
		}
		if !f.watch || f.untilNone && len(x.Drains) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.interval):
		}
	}
}

// drainsKey is equal for answers that differ in their time only.
func drainsKey(x *api.Drains) string {
	var out strings.Builder
	for i := range x.Drains {
		d := &x.Drains[i]
		fmt.Fprintln(&out, d.Service, d.Port, d.Address, d.Stage, d.Weight, printer.Connections(d), d.Why)
	}
	return out.String() + x.ConnectionsError + "."
}

func (f *drainsFlags) print(w io.Writer, x *api.Drains) error {
	if f.output == "json" && f.watch {
		return json.NewEncoder(w).Encode(x)
	}
	if f.output == "yaml" && f.watch {
		fmt.Fprintln(w, "---")
	}
	if f.output != "text" {
		return printer.Object(w, f.output, x)
	}
	if f.watch {
		fmt.Fprintf(w, "%s\n", printer.ClockTime(x.At))
	}
	return printer.Drains(w, x)
}
