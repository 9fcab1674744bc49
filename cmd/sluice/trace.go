package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

type traceFlags struct {
	inputFlags
	locals []string
	flow   api.FlowQuery
	flows  string
	output string
	socket string
	fail   bool
	failed int // flows that are rejected or dropped
}

func newTraceCommand() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from ADDRESS|POD --to ADDRESS:PORT|SERVICE[:PORT]",
		Short: "Show what happens to a new connection, and why",
		Long: `Prints what happens to a new connection under the plan: DNAT with the endpoints that it may reach, REJECT, DROP, or NONE
if it is not to a Service. Sends nothing.

It asks the sluice that is running on this node, with its configuration. With --kubeconfig, --server, --source or --config,
it reads the cluster state and plans by itself, which needs neither root nor a kernel.

Pods and Services are named NAME or NAMESPACE/NAME. The address of a Pod is that in EndpointSlices; of others, use the address.

With --flows, each line of the file is a JSON object, {"from":"10.0.0.2","to":"10.96.0.10:80","protocol":"TCP"}, and
the results are printed in the same order. It stops at the first invalid line.`,
		Example: `  sluice trace -n shop --from cart-0 --to catalog:grpc
  sluice trace --source examples/boutique/manifests --node node-a1 --from 10.244.1.2 --to 10.96.10.2:3550
  sluice trace --source manifests --node a1 --flows flows.jsonl -o json --fail`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd)
	cmd.Flags().StringArrayVar(&f.locals, "local-address", nil, "address of this node in addition to those of its Node object; may be repeated")
	cmd.Flags().StringVar(&f.flow.From, "from", "", "source of the connection: an address, or a Pod")
	cmd.Flags().StringVar(&f.flow.To, "to", "", "destination: address and port, IPv6 as [ADDRESS]:PORT, or a Service with an optional port (name or number)")
	cmd.Flags().StringVar(&f.flow.Protocol, "protocol", "", "TCP, UDP or SCTP (default: that of the port of the Service, else TCP)")
	cmd.Flags().StringVar(&f.flow.Interface, "interface", "", "interface of this node that it arrives on, if detectLocalMode detects Pods by interface")
	cmd.Flags().StringVarP(&f.flow.Namespace, "namespace", "n", "default", "namespace of names without one")
	cmd.Flags().StringVar(&f.flows, "flows", "", "file with one flow per line, as JSON; - for standard input")
	cmd.Flags().BoolVar(&f.fail, "fail", false, "exit with code 3 if a connection is rejected or dropped")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text, or json: one object per line")
	registerSocket(cmd, &f.socket)
	return cmd
}

// traceOne returns what happens to a connection.
type traceOne func(api.FlowQuery) (*api.Traced, *api.TracedFlow, error)

func (f *traceFlags) run(cmd *cobra.Command) (err error) {
	if err := checkOutput(f.output, "text", "json", "yaml"); err != nil {
		return err
	}
	for _, name := range []string{"from", "to", "protocol", "interface"} {
		if f.flows != "" && cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--flows and --%s are mutually exclusive", name)}
		}
	}
	if f.flows == "" {
		if err := f.flow.Check("--"); err != nil {
			return usageError{err}
		}
	}
	for _, s := range f.locals {
		a, err := api.ParseIP(s)
		if err != nil {
			return usageError{fmt.Errorf("--local-address: %w", err)}
		}
		f.local = append(f.local, a)
	}
	in := cmd.InOrStdin()
	if f.flows != "" && f.flows != "-" {
		file, err := os.Open(f.flows)
		if err != nil {
			return fmt.Errorf("--flows: %w", err)
		}
		defer file.Close()
		in = file
	}
	one, end, err := f.tracer(cmd.Context())
	if err != nil {
		return err
	}
	defer end()
	if err := f.traceAll(in, cmd.OutOrStdout(), one); err != nil {
		return err
	}
	if f.fail && f.failed > 0 {
		return stateError{fmt.Errorf("--fail: %d of the connections are rejected or dropped", f.failed)}
	}
	return nil
}

// tracer returns how a connection is traced: by the sluice that runs, or by a plan of the cluster state that the flags name.
func (f *traceFlags) tracer(ctx context.Context) (_ traceOne, end func(), err error) {
	prefix := "--"
	if f.flows != "" {
		prefix = ""
	}
	if f.hasSource() || f.config != "" {
		pl, end, err := f.planOnce(ctx)
		if err != nil {
			return nil, nil, err
		}
		if f.config == "" {
			warn("this is a plan with the default configuration, not that of a running sluice; set --config")
		}
		t := state.NewTracer(pl)
		return func(q api.FlowQuery) (*api.Traced, *api.TracedFlow, error) {
			flow, err := state.Resolve(&q, prefix, pl)
			if err != nil {
				return nil, nil, err
			}
			x := t.Trace(flow)
			return &x, state.NewTracedFlow(flow), nil
		}, end, nil
	}
	if f.mode != "" || len(f.locals) > 0 {
		return nil, nil, usageError{errors.New("--mode and --local-address need --config, or a source of cluster state: the sluice that runs has its own")}
	}
	if f.node != "" {
		s, err := stateclient.OnSocket(f.socket).Status(ctx)
		if err != nil {
			return nil, nil, traceDown(err)
		}
		if s.Node != f.node {
			return nil, nil, usageError{fmt.Errorf("--node %s: the sluice that runs here is that of Node %s; set --kubeconfig or --source to plan for another Node", f.node, s.Node)}
		}
	}
	return func(q api.FlowQuery) (*api.Traced, *api.TracedFlow, error) {
		x, err := stateclient.OnSocket(f.socket).Trace(ctx, &q)
		if err != nil {
			return nil, nil, traceDown(err)
		}
		if x.Flow == nil {
			return nil, nil, errors.New("the answer of the running sluice has no flow")
		}
		return x, x.Flow, nil
	}, func() {}, nil
}

// traceDown adds what to do to the error of a request, if no sluice answers.
func traceDown(err error) error {
	if errors.As(err, new(*stateclient.NotRunningError)) {
		return fmt.Errorf("%w; set --socket, or set --kubeconfig FILE or --source PATH, and --config, to plan without it", err)
	}
	return err
}

func (f *traceFlags) traceAll(in io.Reader, to io.Writer, one traceOne) (err error) {
	out := bufio.NewWriter(to)
	defer func() {
		if ferr := out.Flush(); err == nil && ferr != nil {
			err = fmt.Errorf("write results: %w", ferr)
		}
	}()
	if f.flows == "" {
		return f.print(out, one, f.flow)
	}
	first := true
	return readFlows(in, f.flows, func(q api.FlowQuery) error {
		if !first && f.output == "text" {
			fmt.Fprintln(out)
		}
		first = false
		if err := f.print(out, one, q); err != nil {
			return err
		}
		if f.flows == "-" {
			return out.Flush() // the writer may wait for the result before it sends the next flow
		}
		return nil
	})
}

func (f *traceFlags) print(w io.Writer, one traceOne, q api.FlowQuery) error {
	x, flow, err := one(q)
	if err != nil {
		return err
	}
	if x.Verdict == "REJECT" || x.Verdict == "DROP" {
		f.failed++
	}
	if f.output == "yaml" {
		fmt.Fprintln(w, "---")
		err = printer.Object(w, f.output, x)
	} else if f.output == "json" {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		err = enc.Encode(x)
	} else {
		err = printer.Trace(w, x, flow)
	}
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// maxFlowLine bounds a line of a flows file.
const maxFlowLine = 64 << 10

// readFlows calls each for every flow, one JSON object per line; it skips empty lines. Errors name the file and line.
func readFlows(r io.Reader, name string, each func(api.FlowQuery) error) error {
	if name == "-" {
		name = "standard input"
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxFlowLine)
	n := 0
	for lines.Scan() {
		n++
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		flow, err := parseFlowLine(lines.Text())
		if err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if err := each(flow); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return nil
}

func parseFlowLine(line string) (api.FlowQuery, error) {
	dec := json.NewDecoder(strings.NewReader(line))
	dec.DisallowUnknownFields()
	f := &api.FlowQuery{}
	if err := dec.Decode(&f); err != nil {
		var mismatch *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			err = errors.New("incomplete JSON object")
		case errors.As(err, &mismatch) && mismatch.Field != "":
			err = fmt.Errorf("%s: must be a %s, not a %s", mismatch.Field, mismatch.Type, mismatch.Value)
		case errors.As(err, &mismatch):
			err = fmt.Errorf("must be a JSON object, not a %s", mismatch.Value)
		}
		return api.FlowQuery{}, err
	}
	if f == nil {
		return api.FlowQuery{}, errors.New("null is not a flow")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return api.FlowQuery{}, errors.New("more than one JSON object on a line")
	}
	return *f, f.Check("")
}
