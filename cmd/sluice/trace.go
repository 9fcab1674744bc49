package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

type traceFlags struct {
	inputFlags
	locals []string
	flow   traceFlow
	flows  string
	output string
}

// traceFlow is a line of a flows file.
type traceFlow struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Protocol  string `json:"protocol"`
	Interface string `json:"interface"`
}

func newTraceCommand() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace --from IP --to IP:PORT",
		Short: "Show what happens to a new connection, and why",
		Long: `Prints what happens to a new connection under the plan: DNAT with the endpoints that it may reach, REJECT, DROP, or NONE
if it is not to a Service. Needs neither root nor a kernel, and sends nothing.

With --flows, each line of the file is a JSON object, {"from":"10.0.0.2","to":"10.96.0.10:80","protocol":"TCP"}, and
the results are printed in the same order. It stops at the first invalid line.`,
		Example: `  sluice trace --source examples/boutique/manifests --node node-a1 --from 10.244.1.2 --to 10.96.10.2:3550
  sluice trace --source manifests --node a1 --flows flows.jsonl -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd)
	cmd.Flags().StringArrayVar(&f.locals, "local-address", nil, "address of this node in addition to those of its Node object; may be repeated")
	cmd.Flags().StringVar(&f.flow.From, "from", "", "source address of the connection")
	cmd.Flags().StringVar(&f.flow.To, "to", "", "destination address and port; IPv6 as [ADDRESS]:PORT")
	cmd.Flags().StringVar(&f.flow.Protocol, "protocol", "TCP", "TCP, UDP or SCTP")
	cmd.Flags().StringVar(&f.flow.Interface, "interface", "", "interface of this node that it arrives on, if detectLocalMode detects Pods by interface")
	cmd.Flags().StringVar(&f.flows, "flows", "", "file with one flow per line, as JSON; - for standard input")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "text, or json: one object per line")
	return cmd
}

func (f *traceFlags) run(cmd *cobra.Command) (err error) {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	for _, name := range []string{"from", "to", "protocol", "interface"} {
		if f.flows != "" && cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--flows and --%s are mutually exclusive", name)}
		}
	}
	var single plan.Flow
	if f.flows == "" {
		if single, err = f.flow.parse("--"); err != nil {
			return usageError{err}
		}
	}
	for _, s := range f.locals {
		a, err := parseIP(s)
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
	pl, closePlugins, err := f.planOnce(cmd.Context())
	if err != nil {
		return err
	}
	defer closePlugins()
	t := newTracer(pl)
	out := bufio.NewWriter(cmd.OutOrStdout())
	defer func() {
		if ferr := out.Flush(); err == nil && ferr != nil {
			err = fmt.Errorf("write results: %w", ferr)
		}
	}()
	if f.flows == "" {
		return f.print(out, t, single)
	}
	first := true
	return readFlows(in, f.flows, func(flow plan.Flow) error {
		if !first && f.output == "text" {
			fmt.Fprintln(out)
		}
		first = false
		if err := f.print(out, t, flow); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
		if f.flows == "-" {
			return out.Flush() // the writer may wait for the result before it sends the next flow
		}
		return nil
	})
}

func (f *traceFlags) print(w io.Writer, t *tracer, flow plan.Flow) error {
	a := t.trace(flow)
	if f.output == "json" {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(a)
	}
	return printTrace(w, &a, flow)
}

// maxFlowLine bounds a line of a flows file.
const maxFlowLine = 64 << 10

// readFlows calls each for every flow, one JSON object per line; it skips empty lines. Errors name the file and line.
func readFlows(r io.Reader, name string, each func(plan.Flow) error) error {
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

func parseFlowLine(line string) (plan.Flow, error) {
	dec := json.NewDecoder(strings.NewReader(line))
	dec.DisallowUnknownFields()
	f := &traceFlow{Protocol: "TCP"}
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
		return plan.Flow{}, err
	}
	if f == nil {
		return plan.Flow{}, errors.New("null is not a flow")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return plan.Flow{}, errors.New("more than one JSON object on a line")
	}
	return f.parse("")
}

// parse validates a flow; errors name its fields with the prefix.
func (f *traceFlow) parse(prefix string) (plan.Flow, error) {
	invalid := func(field string, err error) (plan.Flow, error) {
		return plan.Flow{}, fmt.Errorf("%s%s: %w", prefix, field, err)
	}
	if f.From == "" {
		return invalid("from", errors.New("required: an IP address"))
	}
	if f.To == "" {
		return invalid("to", errors.New("required: an IP address and a port"))
	}
	from, err := parseIP(f.From)
	if err != nil {
		return invalid("from", err)
	}
	to, err := netip.ParseAddrPort(f.To)
	if err != nil {
		return invalid("to", fmt.Errorf("%q is not ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", f.To))
	}
	addr, err := parseIP(to.Addr().String())
	if err == nil && to.Port() == 0 {
		err = fmt.Errorf("%q: port 0", f.To)
	}
	if err == nil && model.FamilyOf(addr) != model.FamilyOf(from) {
		err = fmt.Errorf("%q is not of the same IP family as %s", f.To, from)
	}
	if err != nil {
		return invalid("to", err)
	}
	proto, ok := model.ParseProtocol(strings.ToUpper(f.Protocol))
	if !ok {
		return invalid("protocol", fmt.Errorf("%q is not TCP, UDP or SCTP", f.Protocol))
	}
	return plan.Flow{From: from, Interface: f.Interface, To: netip.AddrPortFrom(addr, to.Port()), Protocol: proto}, nil
}

// parseIP parses the address of a packet.
func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q: must not have a zone", s)
	case a.IsUnspecified():
		return netip.Addr{}, fmt.Errorf("%q is the unspecified address", s)
	}
	return a.Unmap(), nil
}
