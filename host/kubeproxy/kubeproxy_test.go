package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// node is a network namespace, and what is needed to look at it.
type node struct {
	testing.TB
	*testnet.Host
}

func newNode(t testing.TB, tools ...string) node {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			msg := tool + " is missing: apt-get install iptables nftables"
			if os.Getenv("CI") != "" {
				t.Fatal(msg)
			}
			t.Skip(msg)
		}
	}
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	return node{t, lab.Node}
}

// try runs a program in the namespace.
func (n node) try(stdin string, args ...string) (out string, err error) {
	derr := n.Do(func() error {
		cmd := exec.Command(args[0], args[1:]...)
		if stdin != "" {
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			go func() { io.WriteString(w, stdin); w.Close() }()
			cmd.Stdin = r
			defer r.Close()
		}
		b, err := cmd.CombinedOutput()
		out = string(b)
		return err
	})
	return out, derr
}

func (n node) run(stdin string, args ...string) string {
	n.Helper()
	out, err := n.try(stdin, args...)
	if err != nil {
		n.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// find gives what is found, a line each.
func (n node) find() string {
	n.Helper()
	var found []Leftover
	err := n.Do(func() (err error) {
		found, err = Find(context.Background())
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return lines(found)
}

func (n node) remove() string {
	n.Helper()
	var found []Leftover
	err := n.Do(func() (err error) {
		found, err = Remove(context.Background())
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return lines(found)
}

func lines(found []Leftover) string {
	var out []string
	for _, l := range found {
		out = append(out, l.String())
	}
	return strings.Join(out, "\n")
}

func TestAnUntouchedNodeHasNothingOfKubeProxys(t *testing.T) {
	n := newNode(t)
	if got := n.find() + n.remove(); got != "" {
		t.Error(got)
	}
}

func TestItsNftablesTablesGoAndOthersStay(t *testing.T) {
	n := newNode(t, "nft")
	others := "table ip sluice { chain services { } ; }\ntable inet kube-proxy { chain c { } ; }\ntable ip kube-proxy2 { chain c { } ; }\n"
	n.run(others, "nft", "-f", "-")
	before := n.run("", "nft", "list", "ruleset")
	n.run(`table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 443 : goto service-a }; }
	chain service-a { meta l4proto tcp dnat to 10.0.0.1:6443; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
}
table ip6 kube-proxy { chain nat-output { type nat hook output priority -100; } ; }
`, "nft", "-f", "-")
	const want = "nftables, table ip kube-proxy\nnftables, table ip6 kube-proxy"
	if got := n.find(); got != want {
		t.Errorf("found:\n%s", got)
	}
	if got := n.remove(); got != want {
		t.Errorf("removed:\n%s", got)
	}
	if after := n.run("", "nft", "list", "ruleset"); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	if got := n.find() + n.remove(); got != "" {
		t.Errorf("still there: %s", got)
	}
}

// theirs is what kube-proxy leaves, foreign is what others have beside it and in between: rules of a network plug-in,
// kubelet's chains, network policies whose names begin like kube-proxy's, and rules that only look like jumps.
const (
	foreignNAT = `*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A PREROUTING -m comment --comment "not -j KUBE-SERVICES" -j CNI-HOSTPORT-DNAT
-A OUTPUT -p tcp -m tcp --dport 31000 -m comment --comment "KUBE-SERVICES" -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.0.9:80
COMMIT
`
	theirsNAT = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
:KUBE-SEP-OEDTYYFSABQBRDTM - [0:0]
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A CNI-HOSTPORT-DNAT -g KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-NPX46M4PTMTKRN6Y -m statistic --mode random --probability 0.5 -j KUBE-SEP-OEDTYYFSABQBRDTM
-A KUBE-SEP-OEDTYYFSABQBRDTM -s 10.0.0.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-OEDTYYFSABQBRDTM -p tcp -m tcp -j DNAT --to-destination 10.0.0.1:6443
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
`
	foreignFilter = `*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-NWPLCY-ABCDEFGHIJKLMNOP - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -j KUBE-ROUTER-FORWARD
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP
-A KUBE-ROUTER-FORWARD -j KUBE-NWPLCY-ABCDEFGHIJKLMNOP
COMMIT
`
	theirsFilter = `*filter
:KUBE-FORWARD - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`
)

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

func TestItsIptablesChainsGoAndNothingElse(t *testing.T) {
	for kind, label := range map[string]string{"nft": "nf_tables", "legacy": "legacy"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, "iptables-nft-restore", "iptables-legacy-restore", "ip6tables-legacy-restore")
			four, six := "iptables-"+kind, "ip6tables-"+kind
			if out, err := n.try("", four, "-t", "nat", "-S"); err != nil {
				t.Skipf("this kernel has no %s: %s", four, out)
			}
			save := func() string {
				var b strings.Builder
				for _, program := range []string{four, six} {
					for line := range strings.Lines(n.run("", program+"-save")) {
						if !strings.HasPrefix(line, "#") {
							b.WriteString(counters.ReplaceAllString(line, ""))
						}
					}
				}
				return b.String()
			}
			n.run(foreignNAT+foreignFilter, four+"-restore", "--noflush")
			n.run("*filter\n:FORWARD ACCEPT [0:0]\n:MINE - [0:0]\n-A FORWARD -j MINE\nCOMMIT\n", six+"-restore", "--noflush")
			before := save()
			n.run(theirsNAT+theirsFilter, four+"-restore", "--noflush")
			n.run("*filter\n:KUBE-FORWARD - [0:0]\n-A MINE -j KUBE-FORWARD\nCOMMIT\n", six+"-restore", "--noflush")

			want := map[string]bool{}
			for _, l := range []string{"ip nat: 7 chains", "ip filter: 2 chains", "ip6 filter: 1 chains"} {
				want["iptables ("+label+"), "+l] = true
			}
			for what, got := range map[string]string{"found": n.find(), "removed": n.remove()} {
				for _, l := range strings.Split(got, "\n") {
					if !want[l] {
						t.Errorf("%s: %q", what, l)
					}
				}
				if len(strings.Split(got, "\n")) != len(want) {
					t.Errorf("%s:\n%s", what, got)
				}
			}
			if after := save(); after != before {
				t.Errorf("after:\n%s\nbefore:\n%s", after, before)
			}
			if got := n.find() + n.remove(); got != "" {
				t.Errorf("still there: %s", got)
			}
		})
	}
}

func TestManyChainsGoInPieces(t *testing.T) {
	n := newNode(t, "iptables-nft-restore")
	const many = 3 * chunk
	n.run("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	for from := 0; from < many; from += 250 { // more do not fit a socket buffer in a user namespace
		var b strings.Builder
		b.WriteString("*nat\n")
		for i := from; i < from+250; i++ {
			fmt.Fprintf(&b, ":KUBE-SVC-%05d - [0:0]\n-A KUBE-SERVICES -d 10.96.%d.%d/32 -j KUBE-SVC-%05d\n", i, i>>8, i&255, i)
		}
		b.WriteString("COMMIT\n")
		n.run(b.String(), "iptables-nft-restore", "--noflush")
	}
	if got, want := n.remove(), fmt.Sprintf("iptables (nf_tables), ip nat: %d chains", many+1); got != want {
		t.Errorf("removed %q, want %q", got, want)
	}
	if got := n.run("", "iptables-nft-save"); strings.Contains(got, "KUBE") {
		t.Errorf("left:\n%s", got)
	}
}

func TestLegacyTablesWithoutTheirProgramsAreSaid(t *testing.T) {
	n := newNode(t, "iptables-legacy-restore")
	if out, err := n.try(theirsFilter, "iptables-legacy-restore", "--noflush"); err != nil {
		t.Skipf("this kernel has no legacy iptables: %s", out)
	}
	t.Setenv("PATH", t.TempDir())
	err := n.Do(func() error {
		_, err := Remove(context.Background())
		return err
	})
	if !errors.Is(err, errNoPrograms) || !strings.Contains(fmt.Sprint(err), "install iptables") {
		t.Errorf("got %v", err)
	}
}

func TestALinkOfItsNameThatIsNoDummyStays(t *testing.T) {
	n := newNode(t)
	err := n.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ipvsLink}, PeerName: "peer"})
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := n.find() + n.remove(); got != "" {
		t.Error(got)
	}
	if err := n.Do(func() error { _, err := netlink.LinkByName(ipvsLink); return err }); err != nil {
		t.Error(err)
	}
}

func TestItsDummyLinkGoes(t *testing.T) {
	n := newNode(t)
	err := n.Do(func() error { return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: ipvsLink}}) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no dummy links")
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := n.remove(); got != "IPVS, link kube-ipvs0" {
		t.Errorf("removed %q", got)
	}
	if got := n.find(); got != "" {
		t.Error(got)
	}
}

func TestVirtualServersThatAreItsOwn(t *testing.T) {
	addr := netip.MustParseAddr
	on := map[netip.Addr]bool{addr("10.96.0.1"): true, addr("192.168.0.1"): false, addr("fd00:96::1"): true}
	for at, want := range map[string]bool{
		"10.96.0.1:443": true, "[fd00:96::1]:53": true, // on its link
		"192.168.0.1:30080": true, "192.168.0.1:80": false, "192.168.0.1:32768": false, // NodePorts
		"203.0.113.1:30080": false, // of a load balancer that is somebody else's
	} {
		a := netip.MustParseAddrPort(at)
		s := server{family: unix.AF_INET6, protocol: unix.IPPROTO_TCP, addr: a.Addr(), port: a.Port()}
		if a.Addr().Is4() {
			s.family = unix.AF_INET
		}
		if got := kubeServer(s, on); got != want {
			t.Errorf("%s: %v", at, got)
		}
		if back, ok := decodeServer(attrs(s.encode().Serialize())[ipvsAttrService]); !ok || back != s {
			t.Errorf("%s: encoded and decoded: %+v", at, back)
		}
	}
	for n := range 60 {
		s := server{family: unix.AF_INET, addr: addr("10.0.0.1")}
		b := attrs(s.encode().Serialize())[ipvsAttrService]
		decodeServer(b[:min(n, len(b))]) // nothing falls over
	}
}

func TestNamesThatAreAndAreNotItsOwn(t *testing.T) {
	for name, want := range map[string]bool{
		"nat KUBE-SVC-ABC": true, "nat KUBE-FIREWALL": true, "filter KUBE-FIREWALL": false, "filter KUBE-FW-X": true,
		"nat KUBE-KUBELET-CANARY": false, "mangle KUBE-IPTABLES-HINT": false, "filter KUBE-POD-FW-ABC": false,
		"nat KUBE-MARK-DROP": false, "nat SVC": false, "nat kube-services": false, "nat KUBE-": false,
	} {
		table, chain, _ := strings.Cut(name, " ")
		if got := isChain(table, chain); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, want := range map[string]bool{
		"KUBE-CLUSTER-IP": true, "KUBE-6-CLUSTER-IP": true, "KUBE-6-LOAD-BALANCER-SOURCE-CID": true,
		"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS": true, "KUBE-6-LOAD-BALANCER-SOURCE-CIDR": false, "KUBE-LOAD-BALANCER-SOURCE-CID": false, "KUBE-DST-ABC": false, "KUBE-SRC-ABC": false, "mine": false,
	} {
		if got := isSet(name); got != want {
			t.Errorf("ipset %s: %v", name, got)
		}
	}
}

// dummy starts a process of a name, in the namespace.
func (n node) dummy(name string) *exec.Cmd {
	n.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		n.Fatal(err)
	}
	cmd := &exec.Cmd{Path: sleep, Args: []string{name, "60"}}
	if err := n.Do(cmd.Start); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// Start returns when exec(2) has closed its files, which is before it has put the arguments in place.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); err == nil && strings.HasPrefix(string(line), name+"\x00") {
			return cmd
		}
		if time.Now().After(end) {
			n.Fatalf("%s does not show", name)
		}
	}
}

func (n node) running(address string) string {
	n.Helper()
	var by string
	if err := n.Do(func() (err error) {
		by, err = Running(context.Background(), "/proc", address)
		return err
	}); err != nil {
		n.Fatal(err)
	}
	return by
}

func TestALiveKubeProxyShowsByItsProcess(t *testing.T) {
	n, elsewhere := newNode(t), newNode(t)
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Fatalf("nothing runs, and yet: %s", by)
	}
	elsewhere.dummy("kube-proxy")
	n.dummy("not-kube-proxy")
	n.dummy("kube-proxy-exporter")
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Errorf("only one elsewhere runs, and yet: %s", by)
	}
	cmd := n.dummy("/usr/local/bin/kube-proxy")
	if by, want := n.running("127.0.0.1:1"), fmt.Sprintf("process %d", cmd.Process.Pid); by != want {
		t.Errorf("%q, want %q", by, want)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if by := n.running("127.0.0.1:1"); by != "" {
		t.Errorf("it has ended, and yet: %s", by)
	}
}

func TestALiveKubeProxyShowsByItsAnswer(t *testing.T) {
	lo, err := netlink.LinkByName("lo") // of the namespace that the tests run in
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mode, configz string
		slow          time.Duration
		want          bool
	}{
		"kube-proxy":             {"iptables", `{"kubeproxy.config.k8s.io":{"BindAddress":"0.0.0.0"}}`, 0, true},
		"one that hides":         {"ipvs", "", 0, true},
		"sluice":                 {"nftables", `{"apiVersion":"sluice.dev/v1alpha1"}`, 0, false},
		"something else":         {"<html>", "", 0, false},
		"what is slow to answer": {"iptables", "", 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(c.slow):
				case <-r.Context().Done():
				}
				switch {
				case r.URL.Path == "/proxyMode":
					io.WriteString(w, c.mode+"\n")
				case r.URL.Path == "/configz" && c.configz != "":
					io.WriteString(w, c.configz)
				default:
					http.NotFound(w, r)
				}
			}))
			s.Start()
			defer s.Close()
			if got := answers(t.Context(), s.Listener.Addr().String()); got != c.want {
				t.Errorf("%v", got)
			}
		})
	}
	if _, err := Running(t.Context(), filepath.Join(t.TempDir(), "none"), "127.0.0.1:1"); err == nil {
		t.Error("no /proc, and no error")
	}
}
