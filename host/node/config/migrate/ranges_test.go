package migrate

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
)

func TestRangesThatWouldBeRefusedAreNamedByCheckAndMigrate(t *testing.T) {
	for text, want := range map[string]string{
		"clusterCIDR: 240.16.0.0/12":                                             "",
		"clusterCIDR: 0.16.0.0/16":                                               "",
		"clusterCIDR: 0.0.0.0/0":                                                 "",
		"clusterCIDR: 198.18.0.0/15,2002::/16":                                   "clusterCIDR: endpoints in 2002::/16 are refused: 2002:: is an IPv6 form of 0.0.0.0",
		"clusterCIDR: 169.254.0.0/16":                                            "clusterCIDR: endpoints in 169.254.0.0/16 are refused: 169.254.0.0 is a link-local address",
		"clusterCIDR: 127.0.0.0/8":                                               "clusterCIDR: endpoints in 127.0.0.0/8 are refused: 127.0.0.0 is a loopback address",
		"clusterCIDR: '224.0.0.0/4,ff00::/8'":                                    "clusterCIDR: endpoints in ff00::/8 are refused",
		"clusterCIDR: '240.0.0.0/4,64:ff9b::f000:0/100'":                         "clusterCIDR: endpoints in 64:ff9b::f000:0/100 are refused",
		"clusterCIDR: 10.0.0.0/8\nclientConnection: {server: https://240.0.0.1}": "",
	} {
		c, err := config.Parse([]byte(head+text+"\n"), "")
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(c.Warnings(), "\n")
		if want == "" && strings.Contains(all, "refused") || !strings.Contains(all, want) {
			t.Errorf("%s: warnings %q, want %q", text, all, want)
		}
		_, notes, err := KubeProxy([]byte(strings.Replace(kubeProxyHead+"mode: nftables\n"+text, "clientConnection: {server: https://240.0.0.1}", "", 1)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if all := notesText(notes); want == "" && strings.Contains(all, "refused") || !strings.Contains(all, want) {
			t.Errorf("%s: notes %q, want %q", text, all, want)
		}
	}
	c, err := config.Parse([]byte(head+"clusterCIDR: 64:ff9b::/96\nendpointCIDRs: ['64:ff9b::/96', 224.0.0.0/8, 169.254.0.0/16, '::1/128']\n"), "")
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(c.Warnings(), "\n"); strings.Contains(all, "clusterCIDR") || strings.Count(all, "does not help") != 3 {
		t.Errorf("warnings %q", all)
	}
}

// A clusterCIDR that only says where Pods are, because they are detected otherwise, still says it.
func TestMigrateKeepsReservedRangesOfPodsThatAreDetectedOtherwise(t *testing.T) {
	for in, want := range map[string]string{
		"detectLocalMode: NodeCIDR\nclusterCIDR: 240.16.0.0/12,fd00::/48\n": "detectLocalMode: NodeCIDR\nendpointCIDRs:\n- 240.16.0.0/12\n",
		"detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8\n":              "detectLocalMode: NodeCIDR\n",
	} {
		text, _, err := KubeProxy([]byte(kubeProxyHead+"mode: nftables\n"+in), Options{})
		if err != nil || string(text) != "apiVersion: sluice.dev/v1alpha1\n"+want+"kind: SluiceConfiguration\n" {
			t.Errorf("%v\n%s", err, text)
		}
	}
}
