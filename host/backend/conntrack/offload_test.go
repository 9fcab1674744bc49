package conntrack

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// offload is a node with rules that translate a frontend to an endpoint, and a flowtable, which forwards the packets of
// established flows past all rules.
type offload struct {
	node     *testnet.Host
	client   net.Conn
	frontend netip.AddrPort
}

func newOffload(t *testing.T, frontend netip.AddrPort, endpoints ...netip.AddrPort) *offload {
	t.Helper()
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	source, err := lab.AddHost("client", netip.MustParseAddr("10.244.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		pod, err := lab.AddHost(e.Addr().String(), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		server, err := pod.Serve("udp", e, e.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
	}
	var links []string
	if err := lab.Node.Do(func() error {
		all, err := net.Interfaces()
		for _, l := range all {
			if l.Flags&net.FlagLoopback == 0 && l.Flags&net.FlagUp != 0 {
				links = append(links, l.Name)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	o := &offload{node: lab.Node, frontend: frontend}
	rules := fmt.Sprintf(`table ip lab {
		flowtable fast { hook ingress priority filter; devices = { %s }; }
		chain prerouting { type nat hook prerouting priority dstnat; }
		chain forward { type filter hook forward priority filter; meta l4proto udp flow add @fast; }
	}`, strings.Join(links, ", "))
	if out, err := o.node.Run(rules, "nft", "-f", "-"); err != nil {
		testenv.RequireOfTestKernels(t, fmt.Errorf("flowtables: %w: %s", err, out))
	}
	o.translate(t, endpoints[0])
	if o.client, err = source.Dial(t.Context(), "udp", frontend); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.client.Close() })
	return o
}

// translate makes an endpoint the one of new flows.
func (o *offload) translate(t *testing.T, to netip.AddrPort) {
	t.Helper()
	rules := fmt.Sprintf("flush chain ip lab prerouting\nadd rule ip lab prerouting ip daddr %s udp dport %d dnat to %s\n", o.frontend.Addr(), o.frontend.Port(), to)
	if out, err := o.node.Run(rules, "nft", "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// answers returns whether an endpoint answers the client's next packet.
func (o *offload) answers(t *testing.T, endpoint netip.AddrPort) bool {
	t.Helper()
	_ = o.client.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
	if _, err := o.client.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := o.client.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(string(b[:n]), endpoint.String())
}

// TestFlowsInAFlowtableEnd: the kernel forwards their packets without conntrack, and finds out that their entries have been
// deleted.
func TestFlowsInAFlowtableEnd(t *testing.T) {
	frontend, old, other := netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.244.0.1:5353"), netip.MustParseAddrPort("10.244.0.2:5353")
	to := key(frontend.String(), model.UDP)
	for name, end := range map[string]func() (int, error){
		"stale": func() (int, error) {
			return (&Table{}).DeleteStaleUDP(t.Context(), model.IPv4, []plan.Key{to}, func(_, from netip.AddrPort) bool { return from == old })
		},
		"reset": func() (int, error) {
			n, err := (&Table{}).Reset(t.Context(), []plan.Reset{{Frontend: to, Endpoint: old}}, nil)
			return n.Connections, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffload(t, frontend, old, other)
			list := func() (fast, all int) {
				if err := o.node.Do(func() error {
					return listFlows(t.Context(), model.IPv4, 0, 0, func(c *flowEntry) {
						all++
						if c.status&statusOffload != 0 {
							fast++
						}
					})
				}); err != nil {
					t.Fatal(err)
				}
				return fast, all
			}
			for fast := 0; fast == 0; fast, _ = list() {
				if !o.answers(t, old) {
					t.Fatal("another endpoint answers")
				}
			}
			o.translate(t, other)
			if !o.answers(t, old) {
				t.Error("a flow does not go on when its endpoint gets no new ones")
			}
			const more = 20 // around that of the flowtable, in the order of the kernel's hash
			if err := o.node.Do(func() error {
				for i := range uint16(more) {
					add(t, i, flow{unix.IPPROTO_UDP, frontend.String(), old.String()})
				}
				if n, err := end(); n != more+1 || err != nil {
					t.Errorf("%d entries are deleted, want %d; %v", n, more+1, err)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if _, all := list(); all != 0 {
				t.Errorf("%d entries are left", all)
			}
			if !o.answers(t, other) {
				t.Error("the flow's next packet is not balanced again")
			}
		})
	}
}
