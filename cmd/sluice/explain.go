package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// explanation is what `sluice explain` shows, and its JSON form.
type explanation struct {
	Service   string        `json:"service"`
	Policy    string        `json:"policy,omitempty"`
	Plugins   []string      `json:"plugins,omitempty"`
	Mode      string        `json:"mode,omitempty"`
	Error     string        `json:"error,omitempty"`
	Frontends []string      `json:"frontends"`
	Contested []string      `json:"contested,omitempty"` // wanted, and another Service has it
	Pools     []explainPool `json:"pools"`
}

// explainPool is one list of a Service port in one family.
type explainPool struct {
	Port      string            `json:"port"`
	Number    uint16            `json:"number"`
	Protocol  string            `json:"protocol"`
	Family    string            `json:"family"`
	Pool      string            `json:"pool"` // cluster or local
	Topology  string            `json:"topology"`
	DecidedBy string            `json:"decidedBy"`
	Endpoints []explainEndpoint `json:"endpoints"`
}

// explainEndpoint is why an endpoint gets what it gets in a pool.
type explainEndpoint struct {
	Address  string        `json:"address"`
	Pod      string        `json:"pod,omitempty"`
	Node     string        `json:"node,omitempty"`
	Zone     string        `json:"zone,omitempty"`
	Eligible bool          `json:"eligible"`
	Why      string        `json:"why"`
	Default  uint16        `json:"default"` // weight by the default rules
	Steps    []explainStep `json:"steps,omitempty"`
	Observed *uint16       `json:"observed,omitempty"` // what a policy in mode Observe would give
	Weight   uint16        `json:"weight"`
	Share    float64       `json:"share"` // of new connections, 0 to 1
	ResetAt  *time.Time    `json:"resetAt,omitempty"`
	Kernel   []kernelShare `json:"kernel,omitempty"`
}

// explainStep is one plugin's word on an endpoint.
type explainStep struct {
	Plugin string `json:"plugin"`
	Weight uint16 `json:"weight"`
	Reason string `json:"reason,omitempty"`
}

// kernelShare is what the data plane really holds for an endpoint behind a frontend.
type kernelShare struct {
	Frontend string `json:"frontend"`
	Weight   uint16 `json:"weight"`
	Total    int    `json:"total"`
	// Connections through the frontend, in mode ipvs.
	Connections *connections `json:"connections,omitempty"`
}

func newExplainCommand() *cobra.Command {
	var in inputFlags
	var output, socket, namespace string
	cmd := &cobra.Command{
		Use:   "explain [-n NAMESPACE] SERVICE",
		Short: "Say why each endpoint of a Service gets what it gets",
		Long: `For each endpoint of a Service: whether it is eligible or why not, its weight by the default rules, each plugin's
weight and reason, its share of new connections, and what the kernel holds.

The sluice that runs on this node is asked, over its socket. With --kubeconfig, --server or --source a cluster as it is
now, or a folder of manifests, is planned here instead; that needs neither root nor a kernel. What the kernel holds is shown where it may be read.`,
		Example: "  sluice explain -n shop catalog\n  sluice explain --source examples/boutique/manifests --node node-a1 -n shop catalog",
		Args:    oneArg("Service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			name := model.Name{Namespace: namespace, Name: args[0]}
			if ns, svc, ok := strings.Cut(args[0], "/"); ok {
				name = model.Name{Namespace: ns, Name: svc}
			}
			var x *explanation
			var err error
			if err := in.check(); err != nil {
				return err
			}
			if !in.asks() {
				x, err = askExplain(cmd.Context(), socket, name)
			} else {
				x, err = in.explain(cmd.Context(), name)
			}
			if err != nil {
				return err
			}
			note := x.addKernel(cmd.Context())
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(x)
			}
			return x.print(cmd.OutOrStdout(), note)
		},
	}
	in.register(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the Service")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	registerSocket(cmd, &socket)
	return cmd
}

// explain plans the folder and explains one Service of it.
func (in *inputFlags) explain(ctx context.Context, name model.Name) (*explanation, error) {
	in.about = name.String()
	planner, closePlugins, err := in.planner(ctx)
	if err != nil {
		return nil, err
	}
	defer closePlugins()
	x, err := planner.Explain(name)
	if err != nil {
		return nil, err
	}
	return newExplanation(x), nil
}

func newExplanation(e *plan.Explanation) *explanation {
	x := &explanation{Service: e.Service.Name.String(), Frontends: []string{}, Pools: []explainPool{}}
	if e.Policy != nil {
		x.Policy, x.Mode = e.Policy.Name, e.Policy.Mode.String()
		for _, s := range e.Policy.Steps {
			x.Plugins = append(x.Plugins, s.Plugin)
		}
	}
	if e.Err != nil {
		x.Error = e.Err.Error()
	}
	for _, f := range e.Frontends {
		x.Frontends = append(x.Frontends, f.Kind.String()+" "+f.Key.String())
	}
	for _, d := range e.Contested {
		x.Contested = append(x.Contested, d.Wanted+" "+d.Frontend.String()+": "+d.Why)
	}
	for i := range e.Decided {
		d := &e.Decided[i]
		if d.Port.UsesCluster {
			x.Pools = append(x.Pools, newExplainPool(d.Port, &d.Cluster, abi.PoolCluster))
		}
		if d.Port.UsesLocal {
			x.Pools = append(x.Pools, newExplainPool(d.Port, &d.Local, abi.PoolLocal))
		}
	}
	return x
}

func newExplainPool(p *service.Port, d *policy.Decision, pool uint8) explainPool {
	out := explainPool{
		Port: p.Name.Port, Number: p.Spec.Port, Protocol: p.Name.Protocol.String(), Family: p.Family.String(),
		Pool: "cluster", Topology: p.Topology.String(), DecidedBy: d.From.String(), Endpoints: []explainEndpoint{},
	}
	if pool == abi.PoolLocal {
		out.Pool = "local"
	}
	total := 0
	for _, w := range d.Weights {
		total += int(w)
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		row := explainEndpoint{
			Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Eligible: e.Eligible(), Why: p.Why(e), Weight: d.Weights[i],
		}
		if pool == abi.PoolLocal && !e.Local {
			row.Eligible, row.Why = false, "not on this node"
		}
		if pool == abi.PoolCluster && e.InCluster || pool == abi.PoolLocal && e.InLocal {
			row.Default = 1
		}
		for _, s := range d.Steps {
			if s.Err == nil {
				row.Steps = append(row.Steps, explainStep{s.Plugin, s.Weights[i], s.Reasons[i]})
			}
		}
		if d.Observed != nil {
			row.Observed = &d.Observed[i]
		}
		if total > 0 {
			row.Share = float64(row.Weight) / float64(total)
		}
		if d.ResetAt != nil && d.ResetAt[i] != 0 {
			at := time.UnixMilli(d.ResetAt[i]).UTC()
			row.ResetAt = &at
		}
		out.Endpoints = append(out.Endpoints, row)
	}
	return out
}

// addKernel fills in what the data plane holds, and says why where it cannot be read.
func (x *explanation) addKernel(ctx context.Context) (note string) {
	held, err := readKernel(ctx)
	if err != nil {
		return "not shown: " + err.Error()
	}
	if len(held.Frontends) == 0 {
		return "sluice holds nothing in this kernel"
	}
	for _, k := range held.Keys() {
		f := held.Frontends[k]
		if f.Owner.Service.String() != x.Service {
			continue
		}
		for i := range x.Pools {
			p := &x.Pools[i]
			if p.Port != f.Owner.Port || p.Protocol != f.Owner.Protocol.String() || p.Family != k.Family().String() {
				continue
			}
			pool := &f.Pool
			if p.Pool == "local" && f.Outside != nil {
				pool = f.Outside
			}
			for j := range p.Endpoints {
				at := slices.IndexFunc(pool.Members, func(m plan.Member) bool { return m.Addr.String() == p.Endpoints[j].Address })
				share := kernelShare{Frontend: k.String(), Total: pool.Total()}
				if at >= 0 {
					share.Weight = pool.Members[at].Weight
				}
				p.Endpoints[j].Kernel = append(p.Endpoints[j].Kernel, share)
			}
		}
	}
	if counts, err := ipvs.ReadCounts(ctx); err == nil {
		x.addCounts(counts)
	}
	return ""
}

// print writes an explanation for people.
func (x *explanation) print(w io.Writer, kernelNote string) error {
	fmt.Fprintf(w, "Service %s\n", x.Service)
	switch {
	case x.Policy == "":
		fmt.Fprintln(w, "  policy     none: the default rules decide")
	default:
		fmt.Fprintf(w, "  policy     %s (%s), mode %s\n", x.Policy, strings.Join(x.Plugins, " → "), x.Mode)
	}
	if x.Error != "" {
		fmt.Fprintf(w, "  error      %s\n", x.Error)
	}
	if len(x.Frontends) == 0 {
		fmt.Fprintln(w, "  frontends  none")
	}
	for i, f := range x.Frontends {
		fmt.Fprintf(w, "  %-9s  %s\n", []string{"frontends", ""}[min(i, 1)], f)
	}
	for _, c := range x.Contested {
		fmt.Fprintf(w, "  not held   %s\n", c)
	}
	if kernelNote != "" {
		fmt.Fprintf(w, "  kernel     %s\n", kernelNote)
	}
	for i := range x.Pools {
		x.Pools[i].print(w, x.Plugins)
	}
	return nil
}

func (p *explainPool) print(w io.Writer, plugins []string) {
	port := p.Port
	if port == "" {
		port = "(unnamed)"
	}
	fmt.Fprintf(w, "\nport %s %d/%s %s, %s pool: decided by %s", port, p.Number, p.Protocol, p.Family, p.Pool, p.DecidedBy)
	if p.Topology != "none" && p.Pool == "cluster" {
		fmt.Fprintf(w, ", hints followed: %s", p.Topology)
	}
	fmt.Fprintln(w)
	if len(p.Endpoints) == 0 {
		fmt.Fprintln(w, "  no endpoints")
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	kernel, steps, observed := false, len(p.Endpoints[0].Steps), p.Endpoints[0].Observed != nil
	for _, e := range p.Endpoints {
		kernel = kernel || len(e.Kernel) > 0
	}
	head := []string{"  ENDPOINT", "NODE", "ZONE", "ELIGIBLE", "DEFAULT"}
	for _, s := range plugins[:steps] {
		head = append(head, strings.ToUpper(s))
	}
	if observed {
		head = append(head, "OBSERVED")
	}
	head = append(head, "WEIGHT", "SHARE")
	if kernel {
		head = append(head, "KERNEL")
	}
	fmt.Fprintln(tw, strings.Join(append(head, "WHY"), "\t"))
	for _, e := range p.Endpoints {
		cells := []string{"  " + e.Address, dash(e.Node), dash(e.Zone), yesNo(e.Eligible), strconv.Itoa(int(e.Default))}
		why := []string{e.Why}
		for _, s := range e.Steps {
			cells = append(cells, strconv.Itoa(int(s.Weight)))
			if s.Reason != "" {
				why = append(why, s.Plugin+": "+s.Reason)
			}
		}
		if observed {
			cells = append(cells, strconv.Itoa(int(*e.Observed)))
		}
		cells = append(cells, strconv.Itoa(int(e.Weight)), fmt.Sprintf("%.1f %%", 100*e.Share))
		if kernel {
			cells = append(cells, e.kernelText())
		}
		if e.ResetAt != nil {
			why = append(why, "connections reset at "+e.ResetAt.Format(time.TimeOnly)+" UTC")
		}
		fmt.Fprintln(tw, strings.Join(append(cells, strings.Join(why, "; ")), "\t"))
	}
	tw.Flush()
}

// kernelText is the kernel's share once where all frontends agree, and by frontend where they do not.
func (e *explainEndpoint) kernelText() string {
	if len(e.Kernel) == 0 {
		return "-"
	}
	text := func(k kernelShare) string {
		s := fmt.Sprintf("%d of %d", k.Weight, k.Total)
		if k.Connections != nil {
			s += " (" + k.Connections.String() + ")"
		}
		return s
	}
	same := !slices.ContainsFunc(e.Kernel, func(k kernelShare) bool { return text(k) != text(e.Kernel[0]) })
	if same {
		return text(e.Kernel[0])
	}
	var all []string
	for _, k := range e.Kernel {
		all = append(all, k.Frontend+": "+text(k))
	}
	return strings.Join(all, ", ")
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
