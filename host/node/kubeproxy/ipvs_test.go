package kubeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sets are the ipsets that kube-proxy v1.36.3 creates in mode ipvs, in the input format of ipset restore.
const sets = `KUBE-LOOP-BACK hash:ip,port,ip
KUBE-CLUSTER-IP hash:ip,port
KUBE-EXTERNAL-IP hash:ip,port
KUBE-EXTERNAL-IP-LOCAL hash:ip,port
KUBE-LOAD-BALANCER hash:ip,port
KUBE-LOAD-BALANCER-FW hash:ip,port
KUBE-LOAD-BALANCER-LOCAL hash:ip,port
KUBE-LOAD-BALANCER-SOURCE-IP hash:ip,port,ip
KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net
KUBE-NODE-PORT-TCP bitmap:port range 0-65535
KUBE-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
KUBE-NODE-PORT-UDP bitmap:port range 0-65535
KUBE-NODE-PORT-LOCAL-UDP bitmap:port range 0-65535
KUBE-NODE-PORT-SCTP-HASH hash:ip,port
KUBE-NODE-PORT-LOCAL-SCTP-HASH hash:ip,port
KUBE-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535
KUBE-IPVS-IPS hash:ip
KUBE-6-LOOP-BACK hash:ip,port,ip family inet6
KUBE-6-CLUSTER-IP hash:ip,port family inet6
KUBE-6-EXTERNAL-IP hash:ip,port family inet6
KUBE-6-EXTERNAL-IP-LOCAL hash:ip,port family inet6
KUBE-6-LOAD-BALANCER hash:ip,port family inet6
KUBE-6-LOAD-BALANCER-FW hash:ip,port family inet6
KUBE-6-LOAD-BALANCER-LOCAL hash:ip,port family inet6
KUBE-6-LOAD-BALANCER-SOURCE-IP hash:ip,port,ip family inet6
KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
KUBE-6-NODE-PORT-TCP bitmap:port range 0-65535
KUBE-6-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
KUBE-6-NODE-PORT-UDP bitmap:port range 0-65535
KUBE-6-NODE-PORT-LOCAL-UDP bitmap:port range 0-65535
KUBE-6-NODE-PORT-SCTP-HASH hash:ip,port family inet6
KUBE-6-NODE-PORT-LOCAL-SCTP-HAS hash:ip,port family inet6
KUBE-6-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535
KUBE-6-IPVS-IPS hash:ip family inet6
`

// requireIPVS skips the test if the kernel lacks IPVS or ipsets; the test kernels have them.
func requireIPVS(t *testing.T, n node) {
	t.Helper()
	_, err := os.Stat("/proc/net/ip_vs")
	if err == nil {
		_, err = n.try("", "ipset", "list", "-n")
	}
	switch {
	case err == nil:
	case os.Getenv("SLUICE_VM") != "":
		t.Fatalf("a test kernel without IPVS or ipsets: %v", err)
	default:
		t.Skipf("this kernel has no IPVS or no ipsets (%v); make test-vm runs this on one that has", err)
	}
}

func TestRemoveDeletesOnlyKubeProxysVirtualServersAndSets(t *testing.T) {
	n := newNode(t, "ipset", "ipvsadm", "ip", "iptables-nft-restore")
	requireIPVS(t, n)
	dump := func() string {
		out := n.run("", "ipvsadm", "-Sn") + n.run("", "ipset", "save") + n.run("", "ip", "-br", "link", "show", "type", "dummy") +
			n.run("", "iptables-nft-save")
		lines := strings.Split(out, "\n")
		slices.Sort(lines) // IPVS lists in the order of a hash
		return counters.ReplaceAllString(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(strings.Join(lines, "\n"), ""), "")
	}
	// Objects of others: virtual servers at other addresses, for a firewall mark, and of sluice at an address of kube-proxy's;
	// sets of network policies; a dummy link.
	n.run("-A -t 203.0.113.1:80 -s rr\n-a -t 203.0.113.1:80 -r 10.9.9.9:80 -m -w 7\n-A -f 7 -s wlc\n-A -t 192.168.0.1:80 -s rr\n"+
		"-A -t 10.96.0.11:80 -s wrr -b flag-3\n", "ipvsadm", "-R")
	n.run("create KUBE-DST-ABCDEF hash:ip\ncreate mine hash:ip\nadd mine 10.1.1.1\n", "ipset", "restore")
	n.run("", "ip", "link", "add", "nodelocaldns", "type", "dummy")
	n.run("*filter\n:FORWARD ACCEPT [0:0]\n:MINE - [0:0]\n-A FORWARD -m set --match-set mine dst -j MINE\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	before := dump()

	n.run("", "ip", "link", "add", ipvsLink, "type", "dummy")
	for _, a := range []string{"10.96.0.10/32", "10.96.0.11/32", "fd00:96::10/128"} {
		n.run("", "ip", "addr", "add", a, "dev", ipvsLink)
	}
	n.run("-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.1:8080 -m -w 1\n-A -u 10.96.0.10:53 -s rr -p 10800\n"+
		"-A --sctp-service 10.96.0.10:90 -s rr\n-A -t 192.168.0.1:30080 -s rr\n-A -t [fd00:96::10]:80 -s rr\n", "ipvsadm", "-R")
	made := strings.Count(sets, "\n")
	n.run("create "+strings.ReplaceAll(strings.TrimSuffix(sets, "\n"), "\n", "\ncreate ")+"\n", "ipset", "restore")
	n.run("add KUBE-CLUSTER-IP 10.96.0.10,tcp:80\nadd KUBE-6-LOOP-BACK fd00::1,tcp:80,fd00::1\n", "ipset", "restore")
	n.run("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n",
		"iptables-nft-restore", "--noflush")

	const want = "iptables (nf_tables), ip nat: 1 chains\nIPVS, link kube-ipvs0\nIPVS: 5 virtual servers\nipset: 34 sets"
	if made != 34 {
		t.Fatalf("%d sets", made)
	}
	if got := n.find(); got != want {
		t.Errorf("found:\n%s", got)
	}
	if got := n.remove(); got != want {
		t.Errorf("removed:\n%s", got)
	}
	n.run("*nat\n-F\nCOMMIT\n", "iptables-nft-restore", "--noflush") // the table itself stays, empty
	after := dump()
	for _, chain := range []string{"*nat", ":PREROUTING ACCEPT ", ":INPUT ACCEPT ", ":OUTPUT ACCEPT ", ":POSTROUTING ACCEPT ", "COMMIT"} {
		if !strings.Contains(before, "*nat") {
			after = strings.Replace(after, chain+"\n", "", 1)
		}
	}
	if after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	if got := n.find() + n.remove(); got != "" {
		t.Errorf("still there: %s", got)
	}
}

// TestDrainKeepsVirtualServersOfHalfClosedConnections: the server goes on sending.
func TestDrainKeepsVirtualServersOfHalfClosedConnections(t *testing.T) {
	n := newNode(t, "ipvsadm", "ip")
	requireIPVS(t, n)
	n.run("", "ip", "link", "add", ipvsLink, "up", "type", "dummy")
	for _, a := range []string{"10.96.0.10/32", "10.96.0.11/32"} {
		n.run("", "ip", "addr", "add", a, "dev", ipvsLink)
	}
	var server net.Listener
	if err := n.Do(func() (err error) { server, err = net.Listen("tcp", "192.168.0.1:8080"); return err }); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n.run("-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 192.168.0.1:8080 -m -w 1\n-A -t 10.96.0.11:80 -s rr\n", "ipvsadm", "-R")
	conn, err := n.Dial(t.Context(), "tcp", netip.MustParseAddrPort("10.96.0.10:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var busy int
	err = n.Do(func() (err error) {
		_, busy, err = Drain(context.Background(), PortRange{30000, 32767})
		return err
	})
	if out := n.run("", "ipvsadm", "-Ln"); err != nil || busy != 1 || strings.Contains(out, "10.96.0.11") {
		t.Errorf("%d virtual servers have connections, %v\n%s", busy, err, out)
	}
	if _, err := peer.Write([]byte("still there")); err != nil {
		t.Error(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testnet.AnswerTimeout))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("the server's answer: %v", err)
	}
}

func TestRemoveKeepsALinkThatIsNotADummy(t *testing.T) {
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

func TestRemoveDeletesTheDummyLink(t *testing.T) {
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

func TestIsKubeProxyServer(t *testing.T) {
	addr := netip.MustParseAddr
	onLink := map[netip.Addr]bool{addr("10.96.0.1"): true, addr("192.168.0.1"): false, addr("fd00:96::1"): true}
	for at, want := range map[string]bool{
		"10.96.0.1:443": true, "[fd00:96::1]:53": true, // on its link
		"192.168.0.1:30080": true, "192.168.0.1:80": false, "192.168.0.1:32768": true, "192.168.0.1:35001": false, // NodePorts
		"203.0.113.1:30080": false, // of another program
	} {
		a := netip.MustParseAddrPort(at)
		s := virtualServer{family: unix.AF_INET6, protocol: unix.IPPROTO_TCP, addr: a.Addr(), port: a.Port()}
		if a.Addr().Is4() {
			s.family = unix.AF_INET
		}
		if got := (ipvs{PortRange{30000, 35000}}).isKubeProxyServer(s, onLink); got != want {
			t.Errorf("%s: %v", at, got)
		}
		if back, ok := decodeServer(nfnl.Attr(s.encode().Serialize(), ipvsAttrService)); !ok || back != s {
			t.Errorf("%s: encoded and decoded: %+v", at, back)
		}
	}
	for n := range 60 {
		s := virtualServer{family: unix.AF_INET, addr: addr("10.0.0.1")}
		b := nfnl.Attr(s.encode().Serialize(), ipvsAttrService)
		decodeServer(b[:min(n, len(b))]) // must not panic
	}
}
