package nodes

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// policies of Kubernetes are the same object, one after the other.
var policies = []struct {
	name, spec string
	flows      []flow
}{
	{"nobody may connect", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}`, []flow{
		{"client-1", "{web-2}:8080", denied}, {"client-1", "{web}:80", denied}, {"client-2", "{web}:80", denied},
		{"outside", "{n1}:31081", denied}, {"outside", "{n2}:31081", denied}, {"client-1", "{other}:80", "other client-1"},
	}},
	{"Pods with a label may", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}], ports: [{port: 8080}]}]}`, []flow{
		{"client-1", "{web}:80", "web-[12] client-1"}, {"client-1", "web.a.svc.cluster.local:80", "web-[12] client-1"}, {"client-1", "{web-2}:8080", "web-2 client-1"},
		{"client-2", "{web}:80", denied}, {"client-2", "{web-1}:8080", denied}, {"other", "{web}:80", denied}, {"outside", "{n1}:31081", denied},
	}},
	{"the Service's port is not the Pods'", `{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: 80}]}]}`, []flow{
		{"client-1", "{web}:80", denied}, {"client-2", "{web}:80", denied}, {"outside", "{n1}:31081", denied},
	}},
	{"Pods of a namespace may", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: b}}}]}]}`, []flow{
		{"client-2", "{web}:80", "web-[12] client-2"}, {"client-1", "{web}:80", denied}, {"outside", "{n2}:31081", denied},
	}},
	{"an address outside may", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{ipBlock: {cidr: 172.31.0.2/32}}]}]}`, []flow{
		{"outside", "{n1}:31081", "web-1 outside"}, {"outside", "{n2}:31081", "web-2 outside"}, {"client-1", "{web}:80", denied}, {"client-2", "{web}:80", denied},
	}},
	{"a client may connect to the Pods of one Service", `{podSelector: {matchLabels: {role: client}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 8080}]}]}`, []flow{
		{"client-1", "{web}:80", "web-[12] client-1"}, {"client-1", "{other}:80", denied}, {"client-1", "{outside}:8080", denied}, {"client-2", "{other}:80", "other client-2"},
	}},
}

// TestBesideNetworkPlugins installs sluice in place of kube-proxy in clusters of network plugins. Both proxies have to forward
// alike, with the same sources, and the plugin's policies have to see the Pods at both ends.
func TestBesideNetworkPlugins(t *testing.T) {
	names := os.Getenv(enabledPlugins)
	if names == "" {
		t.Skip("make test-cni")
	}
	for name := range strings.FieldsSeq(names) {
		t.Run(name, func(t *testing.T) {
			plugin, err := programs.BuildNetwork(t.Context(), t.Output(), name)
			testenv.Require(t, err)
			testBesidePlugin(t, newCluster(t, realcluster.Config{Name: "network-" + name, Network: &plugin}), plugin)
		})
	}
}

func testBesidePlugin(t *testing.T, c *cluster, plugin programs.Network) {
	c.serve()
	f := newFlows(c)
	try := func(proxy string) map[flow][]string {
		all := f.expect(proxy, connectivity...)
		if plugin.Policies {
			for _, p := range policies {
				c.must(c.Apply(t.Context(), "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: policy, namespace: a}\nspec: "+p.spec))
				f.expect(proxy+", "+p.name, p.flows...)
			}
			c.kubectl("-n", "a", "delete", "networkpolicy", "policy")
			f.expect(proxy+", policies deleted", connectivity...)
		}
		return all
	}
	loaded := func(what string, act func()) {
		load := c.load()
		act()
		load.end(what, false)
	}
	restart := func(namespace, daemonSet string) {
		c.kubectl("-n", namespace, "rollout", "restart", "daemonset", daemonSet)
		c.must(c.Rollout(t.Context(), namespace, "daemonset/"+daemonSet))
	}
	before := try("kube-proxy")
	loaded("restart of the plugin, kube-proxy", func() { restart(plugin.Namespace, plugin.DaemonSet) })
	rules := f.rules()
	loaded("installation", func() { c.must(c.Install(t.Context(), c.install)) })
	f.until(90*time.Second, "the plugin's rules are as before", func() string { return difference(rules, f.rules()) })
	t.Logf("sluice check:\n%s", c.kubectl("-n", "sluice-system", "exec", "daemonset/sluice", "-c", "sluice", "--", "/sluice", "check", "--config", "/etc/sluice/sluice.yaml"))
	after := try("sluice")
	for _, flow := range connectivity {
		sameSources(t, flow, before[flow], after[flow])
	}
	loaded("restart of the plugin", func() { restart(plugin.Namespace, plugin.DaemonSet) })
	f.expect("the plugin has been restarted", connectivity...)
	loaded("restart of sluice", func() { restart("sluice-system", "sluice") })
	loaded("the plugin and sluice are killed", func() {
		for _, n := range c.Nodes {
			_, err := n.Exec(t.Context(), "pkill", "-KILL", "-x", "sluice|"+plugin.Program)
			c.must(err)
		}
		f.until(90*time.Second, "both run again", func() string {
			for _, n := range c.Nodes {
				for _, program := range []string{"sluice", plugin.Program} {
					if _, err := n.Exec(t.Context(), "pidof", program); err != nil {
						return err.Error()
					}
				}
			}
			return ""
		})
		c.must(c.Rollout(t.Context(), plugin.Namespace, "daemonset/"+plugin.DaemonSet))
		c.must(c.Rollout(t.Context(), "sluice-system", "daemonset/sluice"))
	})
	f.expect("both have been killed", connectivity...)
	c.logs()
}

// sameSources compares what a server saw with both proxies, if both led to it.
func sameSources(t *testing.T, f flow, before, after []string) {
	t.Helper()
	for _, b := range before {
		server, _, _ := strings.Cut(b, " ")
		other := slices.IndexFunc(after, func(a string) bool { return strings.HasPrefix(a, server+" ") })
		if other >= 0 && after[other] != b {
			t.Errorf("%s to %s: with kube-proxy %q, with sluice %q", f.from, f.to, before, after)
		}
	}
}

// kubeRoutersHash is another in the names of kube-router's chains each time that it writes them.
var kubeRoutersHash = regexp.MustCompile("-[A-Z0-9]{16}")

// rules are those of iptables on all nodes.
func (f *flows) rules() (lines []string) {
	f.Helper()
	for _, n := range f.Nodes {
		out, err := n.Exec(f.Context(), "iptables-nft-save")
		f.must(err)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "-A") {
				lines = append(lines, n.Name+" "+kubeRoutersHash.ReplaceAllString(strings.TrimSpace(line), ""))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func difference(before, after []string) string {
	var out strings.Builder
	for _, line := range before {
		if !slices.Contains(after, line) {
			out.WriteString("- " + line + "\n")
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			out.WriteString("+ " + line + "\n")
		}
	}
	return out.String()
}
