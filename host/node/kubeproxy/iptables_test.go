package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// Rules that kube-proxy leaves, and rules of others around them: of a CNI plugin, kubelet's chains, network policies whose
// names begin like kube-proxy's, and rules that only look like jumps.
const (
	otherNAT = `*nat
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
	kubeProxyNAT = `*nat
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
	otherFilter = `*filter
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
	kubeProxyFilter = `*filter
:KUBE-FORWARD - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
-I FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-I INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`
)

var counters = regexp.MustCompile(`\[\d+:\d+\]`)

func TestRemoveDeletesOnlyKubeProxysIptablesChains(t *testing.T) {
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
			n.run(otherNAT+otherFilter, four+"-restore", "--noflush")
			n.run("*filter\n:FORWARD ACCEPT [0:0]\n:MINE - [0:0]\n-A FORWARD -j MINE\nCOMMIT\n", six+"-restore", "--noflush")
			before := save()
			n.run(kubeProxyNAT+kubeProxyFilter, four+"-restore", "--noflush")
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

func TestRemoveDeletesManyChainsInBatches(t *testing.T) {
	n := newNode(t, "iptables-nft-restore")
	const many = 3 * maxBatch
	n.run("*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "iptables-nft-restore", "--noflush")
	for from := 0; from < many; from += 250 { // more do not fit into a socket buffer in a user namespace
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

func TestRemoveFailsWithoutTheProgramsForLegacyTables(t *testing.T) {
	n := newNode(t, "iptables-legacy-restore")
	if out, err := n.try(kubeProxyFilter, "iptables-legacy-restore", "--noflush"); err != nil {
		t.Skipf("this kernel has no legacy iptables: %s", out)
	}
	t.Setenv("PATH", t.TempDir())
	err := n.Do(func() error {
		_, err := Remove(context.Background(), PortRange{30000, 32767})
		return err
	})
	if !errors.Is(err, errProgramMissing) || !strings.Contains(fmt.Sprint(err), "install iptables") {
		t.Errorf("got %v", err)
	}
}
