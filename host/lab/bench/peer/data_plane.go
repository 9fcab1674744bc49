package peer

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// way is a kind of access that is measured: a Service of its own, besides those of loadgen.
type way struct {
	name, service string
	family        model.Family
	index         int // of its ClusterIP, beyond loadgen's
	target        uint16
	workload      workload
	change        func(s *corev1.Service)
}

const (
	nodePort    = 30080
	echoPort    = loadgen.TargetPort + 1
	discardPort = loadgen.TargetPort + 2
	// weighted is the label of the Service whose endpoints a policy weighs.
	weighted = "weighted"
)

// ways are what each row of the tables measures.
func ways() []way {
	return []way{
		{"ClusterIP", "plane", model.IPv4, 60_000, loadgen.TargetPort, connections, func(*corev1.Service) {}},
		{"ClusterIP, IPv6", "plane-ipv6", model.IPv6, 60_007, loadgen.TargetPort, connections, func(*corev1.Service) {}},
		{"ClusterIP, session affinity", "plane-affinity", model.IPv4, 60_001, loadgen.TargetPort, connections, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }},
		{"ClusterIP, a policy weighs endpoints 4 : 1", "plane-weighted", model.IPv4, 60_002, loadgen.TargetPort, connections, func(s *corev1.Service) { s.Labels = map[string]string{weighted: "yes"} }},
		{"NodePort, from outside", "plane-nodeport", model.IPv4, 60_003, loadgen.TargetPort, connections, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort
		}},
		{"ClusterIP", "plane-rate", model.IPv4, 60_004, loadgen.TargetPort, rate, func(*corev1.Service) {}},
		{"ClusterIP", "plane-request", model.IPv4, 60_005, echoPort, requests, func(*corev1.Service) {}},
		{"ClusterIP", "plane-stream", model.IPv4, 60_006, discardPort, stream, func(*corev1.Service) {}},
	}
}

// address returns where clients find a way on a node.
func (w *way) address(n *node) netip.AddrPort {
	if w.service == "plane-nodeport" {
		return netip.AddrPortFrom(n.lab.Node.Addrs[0], nodePort)
	}
	return netip.AddrPortFrom(w.clusterIP(), loadgen.ServiceAddr(w.index).Port())
}

func (w *way) clusterIP() netip.Addr {
	if w.family == model.IPv6 {
		return netip.MustParseAddr("fd00:96::a")
	}
	return loadgen.ClusterIP(w.index)
}

// endpoints returns those of a way's Service.
func (w *way) endpoints(n int) []testcluster.Endpoint {
	list := loadgen.Endpoints(1<<23+w.index*16, n)
	if w.family == model.IPv6 {
		a := pods6.Addr()
		for i := range list {
			a = a.Next()
			list[i].Addr = a
		}
	}
	return list
}

// planeOptions are the flags of bench dataplane.
type planeOptions struct {
	options
	rounds int
	policy string
}

// DataPlaneMain runs bench dataplane with these arguments: connections through kube-proxy, through sluice, and through one rule.
func DataPlaneMain(args []string) error {
	var o planeOptions
	flags := flag.NewFlagSet("dataplane", flag.ExitOnError)
	flags.IntVar(&o.rounds, "rounds", 60, "rounds of measurements: two blocks of each way and proxy")
	flags.StringVar(&o.policy, "policy", "bin/zone-first.wasm", "module of examples/plugin-zone-first")
	o.register(flags, "1000,10000,44000")
	_ = flags.Parse(args) // it exits
	return o.inNamespace(func(ctx context.Context) error {
		results, planes, err := o.measure(ctx)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		printPlanes(&text, results, planes)
		return benchutil.Publish(o.write, "dataplane", text.Bytes())
	})
}

// measure measures the data plane at each size.
func (o *planeOptions) measure(ctx context.Context) (*results, []dataPlane, error) {
	b, sizes, err := o.begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer b.end()
	if o.policy, err = filepath.Abs(o.policy); err != nil {
		return nil, nil, err
	}
	b.proxies[1] = sluiceWith(b.proxies[1], o.policy)
	if err := b.env.Cluster.AddNamespace(ctx, loadgen.Namespace); err != nil {
		return nil, nil, err
	}
	for _, w := range ways() {
		s := testcluster.Service(loadgen.Namespace, w.service, w.clusterIP(), 80)
		w.change(s)
		slice := testcluster.Slice(loadgen.Namespace, w.service, w.target, w.endpoints(o.endpoints)...)
		if err := b.env.Cluster.CreateInBulk(ctx, 1, func(int) (*corev1.Service, *discoveryv1.EndpointSlice) { return s, slice }); err != nil {
			return nil, nil, err
		}
	}
	outside, err := b.env.Net.AddHost("outside", netip.MustParseAddr("192.0.2.2"))
	if err != nil {
		return nil, nil, err
	}
	var planes []dataPlane
	for _, n := range sizes {
		if err := b.createServices(ctx, n); err != nil {
			return nil, nil, err
		}
		p := dataPlane{Services: n}
		var nodes []*node
		for _, proxy := range []*proxy{nil, b.proxies[0], b.proxies[1]} {
			at, err := b.planeNode(ctx, proxy, b.services)
			if err != nil {
				return nil, nil, err
			}
			nodes = append(nodes, at)
		}
		b.progress("data plane")
		for _, w := range ways() {
			row := planeRow{way: w}
			var targets []target
			for _, n := range nodes {
				t := target{node: n, from: n.client, to: w.address(n)}
				if w.service == "plane-nodeport" {
					t.from = outside
				}
				targets = append(targets, t)
			}
			if row.blocks, err = w.workload.alternate(targets, o.rounds); err != nil {
				return nil, nil, fmt.Errorf("%s, %s, %s: %w", describeSize(n, o.endpoints), w.workload.name, w.name, err)
			}
			p.rows = append(p.rows, row)
		}
		planes = append(planes, p)
	}
	return &b.results, planes, nil
}

// planeNode adds a node with the rules of a proxy, or with one rule for each way, and servers.
func (b *bench) planeNode(ctx context.Context, p *proxy, services int) (n *node, err error) {
	if p == nil {
		if n, err = b.env.addNode(ctx); err == nil {
			err = n.addRules(b.endpoints)
		}
	} else {
		still := *p
		still.changes = 0
		n, err = b.measureProxy(ctx, &still, services, &proxyResult{})
	}
	if err != nil {
		return nil, err
	}
	for port, answer := range map[uint16]func(int){echoPort: echo, discardPort: discard} {
		stop, err := serve(n.pods, port, answer)
		if err != nil {
			return nil, err
		}
		n.stop = append(n.stop, stop)
	}
	return n, nil
}

// addRules lets a node translate the addresses of the ways to one endpoint each, with a rule for each, and nothing else.
func (n *node) addRules(endpoints int) error {
	rules := map[string]string{}
	for _, w := range ways() {
		at, to := w.address(n), netip.AddrPortFrom(w.endpoints(endpoints)[0].Addr, w.target)
		family := map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[w.family]
		rules[family] += fmt.Sprintf("  %s daddr %s tcp dport %d dnat to %s\n", family, at.Addr(), at.Port(), to)
	}
	text := fmt.Sprintf("table ip one {\n chain from { type nat hook postrouting priority srcnat;\n  ip saddr 192.0.2.0/24 ip daddr %s masquerade\n }\n}\n", loadgen.PodCIDR())
	for family, list := range rules {
		text += fmt.Sprintf("table %s one {\n chain to { type nat hook prerouting priority dstnat;\n%s }\n}\n", family, list)
	}
	out, err := n.lab.Node.Run(text, "nft", "-f", "-")
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// sluiceWith is sluice with a policy for the Services that have the label.
func sluiceWith(p *proxy, module string) *proxy {
	with, command := *p, p.command
	with.command = func(s *environment, n *node) ([]string, error) {
		args, err := command(s, n)
		if err != nil {
			return nil, err
		}
		config, err := os.OpenFile(filepath.Join(n.dir, "sluice.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		defer config.Close()
		_, err = fmt.Fprintf(config, "plugins: [{name: zone-first, file: %q}]\npolicies: [{name: zone-first, plugins: [{name: zone-first}]}]\n"+
			"bindings: [{selector: {matchLabels: {%s: \"yes\"}}, policy: zone-first}]\n", module, weighted)
		return args, err
	}
	return &with
}

// target is a way on a node.
type target struct {
	node *node
	from client
	to   netip.AddrPort
}

// alternate measures targets in alternating blocks: A B … B A in one round, B A … A B in the next. Each target has two blocks a
// round, so that it can be compared with itself. Its blocks, of a value of each metric, are in chronological order.
func (w *workload) alternate(targets []target, rounds int) ([][]block, error) {
	out := make([][]block, len(targets))
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	for round := range rounds + 1 {
		slices.Reverse(order)
		back := slices.Clone(order)
		slices.Reverse(back)
		for _, i := range append(slices.Clone(order), back...) {
			if err := flushConntrack(targets[i].node.lab.Node); err != nil {
				return nil, err
			}
			got, err := w.run(&targets[i])
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first one is a warm-up
				out[i] = append(out[i], got)
			}
		}
	}
	return out, nil
}
