package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/kubelet"
)

const stateConfig = "stateBindAddress: 127.0.0.1:10252\n"

// plugin is a user of `kubectl sluice`.
type plugin struct {
	*scene
	kubeconfig string
}

// run runs `kubectl sluice` and returns what it prints, and its error with its exit code.
func (p *plugin) run(args ...string) (string, error) {
	return p.network.Node.Run("", append([]string{p.kubectlSluice, "--kubeconfig", p.kubeconfig, "--timeout", "60s"}, args...)...)
}

// must returns what a command prints.
func (p *plugin) prints(args ...string) string {
	p.Helper()
	out, err := p.run(args...)
	if err != nil {
		p.Fatalf("kubectl sluice %s: %v\n%s\n%s", strings.Join(args, " "), err, out, p.logs())
	}
	return out
}

// fails checks that a command fails and says why.
func (p *plugin) fails(want string, args ...string) {
	p.Helper()
	if out, err := p.run(args...); err == nil || !strings.Contains(out, want) {
		p.Errorf("kubectl sluice %s: %v, want %q\n%s", strings.Join(args, " "), err, want, out)
	}
}

// stateAPI lets `kubectl sluice` reach the nodes: RBAC as in the component, a stand-in for each kubelet's port forwarding, and
// Pods of sluice, which are processes in the network namespaces of the nodes.
func (s *scene) stateAPI() {
	s.Helper()
	rbac, err := filepath.Abs("../../../deploy/kustomize/components/kubectl/rbac.yaml")
	s.must(err)
	_, err = s.Kubectl(s.ctx, "", "apply", "-f", rbac)
	s.must(err)
	s.Cleanup(func() { s.afterwards("delete", "-f", rbac) })
	for name, place := range s.nodes {
		var l net.Listener
		s.must(place.Node.Do(func() (err error) {
			l, err = net.Listen("tcp", netip.AddrPortFrom(place.addr, kubelet.Port).String())
			return err
		}))
		s.Cleanup(kubelet.Serve(l, func(ctx context.Context, _, _ string, port int32) (net.Conn, error) {
			return place.Node.Dial(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)))
		}))
		s.agentPod("sluice-"+name, name)
	}
}

// agentPod creates the Pod of the sluice of a node.
func (s *scene) agentPod(pod, node string) {
	s.Helper()
	s.must(s.AddPod(s.ctx, testcluster.Pod{
		Namespace: accountNamespace, Name: pod, Labels: map[string]string{"app.kubernetes.io/name": "sluice"}, Node: node,
		Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.99")}, Ready: true,
	}))
	s.Cleanup(func() {
		if err := s.RemovePod(context.Background(), accountNamespace, pod); err != nil {
			s.Error(err)
		}
	})
}

// user returns a user with a client certificate who may use `kubectl sluice`: they have no token of their own.
func (s *scene) user(name string) *plugin {
	s.Helper()
	kubeconfig, err := s.UserKubeconfig(name)
	s.must(err)
	_, err = s.Kubectl(s.ctx, "", "-n", accountNamespace, "create", "rolebinding", name, "--role=kubectl-sluice", "--user="+name)
	s.must(err)
	s.Cleanup(func() { s.afterwards("-n", accountNamespace, "delete", "rolebinding", name) })
	return &plugin{s, kubeconfig}
}

// TestKubectlSluice uses the plugin as an operator does, against two nodes.
func TestKubectlSluice(t *testing.T) {
	s := newScene(t, "plugin")
	s.apply(web)
	s.pod("a", "web", s.nodes["n1"], "")
	s.stateAPI()
	for _, node := range []string{"n1", "n2"} {
		s.run(node, s.policies(1, stateConfig))
	}
	s.expect(s.nodes["n1"].client, s.vip("web", false), "a")
	admin, err := s.UserKubeconfig("root", "system:masters")
	s.must(err)
	p := &plugin{s, admin}

	out := p.prints("status")
	for _, line := range []string{"NODE", "n1", "n2"} {
		if !strings.Contains(out, "\n"+line) && !strings.HasPrefix(out, line) {
			t.Errorf("status:\n%s", out)
		}
	}
	var list struct {
		Nodes []struct {
			Node   string
			Status struct {
				Mode string
				Plan struct{ Services int }
			}
		}
	}
	s.must(json.Unmarshal([]byte(p.prints("status", "-o", "json")), &list))
	if len(list.Nodes) != 2 || list.Nodes[1].Node != "n2" || list.Nodes[1].Status.Mode != "nftables" || list.Nodes[1].Status.Plan.Services == 0 {
		t.Errorf("%+v", list)
	}
	if out := p.prints("status", "-o", "name"); out != "node/n1\nnode/n2\n" {
		t.Errorf("status -o name: %q", out)
	}
	for _, c := range []struct{ args, want string }{
		{"status n2", "node           n2, zone b"},
		{"status -o wide", "sluice-n2"},
		{"status -o yaml", "mode: nftables"},
		{"explain -n plugin web", "node       n1"},
		{"explain -n plugin web --node n2", "node       n2"},
		{"explain plugin/web --pod plugin/a", "node       n1"},
		{"explain -n plugin web -o json", `"service": "plugin/web"`},
		{"explain -n plugin", "web"},
		{"explain -n plugin -o name", "service/web\n"},
		{"trace -n plugin --from a --to web", "by the sluice that runs on node n1"},
		{"trace --from a --to web -n plugin --node n2", "by the sluice that runs on node n2"},
		{"trace -n plugin --from a --to web -o json", `"verdict": "DNAT"`},
		{"drains", "no endpoint drains on 2 nodes"},
		{"policies", "2 of 2"},
		{"policies -o wide", "2 of 2: n1 n2"},
		{"__complete explain -n plugin w", "web\n"},
		{"__complete explain -n plu", "plugin\n"},
		{"__complete explain --node n", "n1\nn2\n"},
		{"__complete trace -n plugin --from ", "a\n"},
		{"__complete status ", "n1\nn2\n"},
	} {
		if out := p.prints(strings.Split(c.args, " ")...); !strings.Contains(out, c.want) {
			t.Errorf("kubectl sluice %s: no %q in\n%s", c.args, c.want, out)
		}
	}
	p.fails(`did you mean "n1"`, "status", "n11")
	p.fails("must be one of", "status", "-o", "xml")
	p.fails("none-such", "explain", "-n", "plugin", "none-such")
	t.Run("bundle", func(t *testing.T) { checkNodesBundle(t, p) })
	t.Run("rights", func(t *testing.T) { checkStateRights(t, s) })
	t.Run("silent", func(t *testing.T) { checkSilentNodes(t, s, p) })
}

// checkNodesBundle looks into a bundle of both nodes.
func checkNodesBundle(t *testing.T, p *plugin) {
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	p.prints("bundle", "-f", file, "--anonymize")
	text, err := p.network.Node.Run("", "cat", file)
	p.must(err)
	zip, err := gzip.NewReader(bytes.NewReader([]byte(text)))
	p.must(err)
	var names []string
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		p.must(err)
		names = append(names, strings.TrimPrefix(h.Name, "sluice-bundle/"))
		if content, err := io.ReadAll(r); err != nil || len(content) == 0 || bytes.Contains(content, []byte("plugin/web")) {
			t.Errorf("%s: %v, %d bytes", h.Name, err, len(content))
		}
	}
	for _, node := range []string{"n1", "n2"} {
		for _, part := range []string{"status.json", "drains.json", "config.json", "plan.txt", "metrics.txt", "log.txt"} {
			if !slices.Contains(names, node+"/"+part) {
				t.Errorf("no %s/%s in %q", node, part, names)
			}
		}
	}
}

// checkStateRights checks who may read the state of a node, also without the plugin.
func checkStateRights(t *testing.T, s *scene) {
	s = &scene{T: t, lab: s.lab, ctx: t.Context(), ns: s.ns, runs: s.runs}
	ann := s.user("ann")
	if out := ann.prints("explain", "-n", "plugin", "web"); !strings.Contains(out, "Service plugin/web") {
		t.Errorf("ann may use the plugin:\n%s", out)
	}
	kubeconfig, err := s.UserKubeconfig("bob")
	s.must(err)
	(&plugin{s, kubeconfig}).fails(`cannot list resource "pods"`, "status")

	token := func(account, audience string) string {
		seconds := int64(600)
		r, err := s.Client.CoreV1().ServiceAccounts(accountNamespace).CreateToken(s.ctx, account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds},
		}, metav1.CreateOptions{})
		s.must(err)
		return r.Status.Token
	}
	_, err = s.Kubectl(s.ctx, "", "-n", accountNamespace, "create", "serviceaccount", "nobody")
	s.must(err)
	defer s.afterwards("-n", accountNamespace, "delete", "serviceaccount", "nobody")
	for _, c := range []struct {
		what, token string
		code        int
	}{
		{"a viewer's token", token("sluice-viewer", "sluice.dev/node/n1"), http.StatusOK},
		{"no token", "", http.StatusUnauthorized},
		{"no real token", "eyJhbGciOiJub25lIn0.e30.", http.StatusUnauthorized},
		{"a token for another node", token("sluice-viewer", "sluice.dev/node/n2"), http.StatusUnauthorized},
		{"a token for the API server", token("sluice-viewer", "https://kubernetes.default.svc"), http.StatusUnauthorized},
		{"a token of who may not list Services", token("nobody", "sluice.dev/node/n1"), http.StatusForbidden},
	} {
		s.eventually(c.what, func() error {
			r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://sluice/services", nil)
			s.must(err)
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			client := &http.Client{Timeout: timeout, Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return s.nodes["n1"].Node.Dial(ctx, network, netip.MustParseAddrPort("127.0.0.1:10252"))
				},
			}}
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != c.code {
				err = fmt.Errorf("%s: %s", resp.Status, text)
			}
			if c.code != http.StatusOK && bytes.Contains(text, []byte("web")) {
				t.Errorf("%s reads %s", c.what, text)
			}
			return err
		})
	}
}

// checkSilentNodes: nodes that do not answer have a row that says why, and hold no other up.
func checkSilentNodes(t *testing.T, s *scene, p *plugin) {
	s = &scene{T: t, lab: s.lab, ctx: t.Context(), ns: s.ns, runs: s.runs}
	for _, n := range []testcluster.Node{
		{Name: "n3", Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.1")}}, // no kubelet: refused
		{Name: "n4"}, // no Pod of sluice
	} {
		s.must(s.AddNode(s.ctx, n))
		defer s.afterwards("delete", "node", n.Name)
	}
	s.agentPod("sluice-n3", "n3")
	s.runs["n2"].configure(s.policies(1, "")) // needs a restart
	s.runs["n2"].end(syscall.SIGTERM)
	s.runs["n2"].start()
	s.runs["n2"].synced()
	out, err := p.run("status")
	if err == nil || !strings.Contains(out, "failing: 3 of 4 nodes: n2, n3, n4") {
		t.Errorf("%v\n%s", err, out)
	}
	rows := map[string]string{}
	for line := range strings.Lines(out) {
		if name, _, ok := strings.Cut(line, " "); ok {
			rows[name] = line
		}
	}
	for node, want := range map[string]string{
		"n1": "nftables", "n2": "is stateBindAddress set in its configuration?", "n3": "forward a port of Pod sluice-n3", "n4": "no Pod of sluice runs there",
	} {
		if !strings.Contains(rows[node], want) {
			t.Errorf("%s: no %q in\n%s", node, want, out)
		}
	}
	if out := p.prints("drains"); !strings.Contains(out, "no endpoint drains on 1 nodes") || !strings.Contains(out, "node n3 is not counted") {
		t.Errorf("drains:\n%s", out)
	}
	p.fails("no Pod of sluice runs there", "explain", "-n", "plugin", "web", "--node", "n4")
}
