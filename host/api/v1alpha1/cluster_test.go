package v1alpha1_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// server is an API server with the kinds.
type server struct {
	t *testing.T
	*testcluster.Cluster
}

// plural is the resource of each kind.
var plural = map[string]string{"ServicePlugin": "serviceplugins", "ServicePolicy": "servicepolicies", "ClusterServicePolicy": "clusterservicepolicies", "NodeReport": "nodereports", "EndpointLoad": "endpointloads"}

// write creates (POST), changes (PATCH) or deletes an object of the kinds, with the server's strict validation; dry: without
// storing it.
func (s *server) write(client *kubernetes.Clientset, verb, manifest string, dry bool) error {
	s.t.Helper()
	var o metav1.PartialObjectMetadata
	must(s.t, yaml.Unmarshal([]byte(manifest), &o))
	body, err := yaml.YAMLToJSON([]byte(manifest))
	must(s.t, err)
	path := "/apis/sluice.dev/v1alpha1/"
	if o.Namespace != "" {
		path += "namespaces/" + o.Namespace + "/"
	}
	if path += plural[o.Kind]; verb != "POST" {
		path += "/" + o.Name
	}
	request := client.CoreV1().RESTClient().Verb(verb).AbsPath(path).SetHeader("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[verb == "PATCH"])
	if verb != "DELETE" {
		request = request.Param("fieldValidation", "Strict").Body(body)
	}
	if dry {
		request = request.Param("dryRun", "All")
	}
	return request.Do(s.t.Context()).Error()
}

// as returns a client with a token.
func (s *server) as(token string) *kubernetes.Clientset {
	config := rest.AnonymousClientConfig(s.Config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	must(s.t, err)
	return client
}

// user returns a client of a user who has a role in a namespace.
func (s *server) user(name, namespace, role string) *kubernetes.Clientset {
	must(s.t, s.Apply(s.t.Context(), fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[3]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
`, name, namespace, role)))
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	must(s.t, err)
	return client
}

// wantErr checks an error: nil for "", otherwise its text.
func (s *server) wantErr(name string, err error, want string) {
	s.t.Helper()
	switch {
	case want == "" && err != nil:
		s.t.Errorf("%s: refused: %v", name, err)
	case want != "" && err == nil:
		s.t.Errorf("%s: accepted, want %q", name, want)
	case want != "" && !strings.Contains(err.Error(), want):
		s.t.Errorf("%s: %v\nwant %q", name, err, want)
	}
}

func (s *server) run(name string, test func(*server)) {
	s.t.Run(name, func(t *testing.T) { test(&server{t, s.Cluster}) })
}

// TestKindsAtAnAPIServer installs the kinds as deploy/README.md says, and has one API server for all tests.
func TestKindsAtAnAPIServer(t *testing.T) {
	ctx := t.Context()
	lo, err := netlink.LinkByName("lo") // in the namespace that TestMain created
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	c, err := testcluster.Start(ctx, testcluster.Options{Controllers: []string{"clusterrole-aggregation-controller"}})
	must(t, err)
	t.Cleanup(c.Close)
	c.LogOnFailure(t)
	s := &server{t, c}
	dir, err := filepath.Abs("../../../deploy/kustomize/crds")
	must(t, err)
	if out, err := c.Kubectl(ctx, "", "apply", "--server-side", "--validate=strict", "-k", dir); err != nil || strings.Contains(out, "Warning") {
		t.Fatal(out, err)
	}
	if out, err := c.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice"); err != nil || strings.Count(out, "condition met") != 5 {
		t.Fatal(out, err)
	}
	for _, ns := range []string{"shop", "lab"} {
		must(t, c.AddNamespace(ctx, ns))
	}
	s.run("rules", testRules)
	s.run("columns", testColumns)
	s.run("reports", testReports)
	s.run("loads", testLoads)
	s.run("tenants", testTenants)
	s.run("older objects", testOlderObjects)
	s.run("downgrade", testDowngrade) // last: it tries to change the kinds
}

// object returns a manifest of a kind.
// absent is the UID of owners of objects that are not stored, or that the garbage collector may delete.
const absent = "0b5c5f3c-1c4f-4a5e-8f5c-0b5c5f3c1c4f"

func object(kind, namespace, name, spec string) string {
	field := "spec"
	switch kind {
	case "NodeReport":
		field = "report"
	case "EndpointLoad":
		field = "endpoints"
	}
	in := ""
	if namespace != "" {
		in = ", namespace: " + namespace
	}
	if kind == "EndpointLoad" {
		in += fmt.Sprintf(", ownerReferences: [{apiVersion: v1, kind: Service, name: %s, uid: %s}]", name, absent)
	}
	return fmt.Sprintf("apiVersion: sluice.dev/v1alpha1\nkind: %s\nmetadata: {name: %s%s}\n%s: %s\n", kind, name, in, field, spec)
}

func repeat(n int, item func(i int) string) string {
	var out []string
	for i := range n {
		out = append(out, item(i))
	}
	return strings.Join(out, ", ")
}

// testRules checks each rule of the schemas with an object that it accepts and one that it refuses.
func testRules(s *server) {
	digest := "sha256:" + strings.Repeat("a", 64)
	chain := "plugins: [{name: near}]"
	ports := func(n int) string { return repeat(n, func(i int) string { return fmt.Sprintf("{name: web%d}", i) }) }
	for _, c := range []struct{ kind, name, spec, want string }{
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}}", ""},
		{"ServicePlugin", "near", "{source: {type: Image, image: {ref: \"ghcr.io/acme/near@" + digest + "\"}}, use: {namespaces: [shop], settings: [demand]}}", ""},
		{"ServicePlugin", "near", "{source: {type: File, file: {path: /modules/near.wasm, digest: \"" + digest + "\"}}, isolation: Namespace, limits: {memoryMiB: 8}}", ""},
		{"ServicePlugin", "near", "{}", "spec.source"},
		{"ServicePlugin", "near", "{source: {type: Image}}", "image is required with type Image"},
		{"ServicePlugin", "near", "{source: {type: File, file: {path: /a}, bundled: {name: near}}}", "bundled is required with type Bundled, and forbidden otherwise"},
		{"ServicePlugin", "near", "{source: {type: Web}}", "Unsupported value"},
		{"ServicePlugin", "near", "{source: {type: Image, image: {ref: \"ghcr.io/acme/near:v1\"}}}", "with the digest of the manifest"},
		{"ServicePlugin", "near", "{source: {type: Image, image: {ref: \"" + strings.Repeat("x", 513) + "\"}}}", "Too long"},
		{"ServicePlugin", "near", "{source: {type: File, file: {path: near.wasm}}}", "must be an absolute path"},
		{"ServicePlugin", "near", "{source: {type: File, file: {path: /near.wasm, digest: abc}}}", "should match"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, verify: {key: \"-----BEGIN PUBLIC KEY-----\"}}", "only images have signatures"},
		{"ServicePlugin", "near", "{source: {type: Image, image: {ref: \"g/n@" + digest + "\"}}, verify: {key: \"ssh-rsa AAAA\"}}", "must be a public key in PEM"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, limits: {memoryMiB: 65}}", "less than or equal to 64"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, limits: {instances: 1}}", "greater than or equal to 2"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, isolation: None}", "Unsupported value"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, use: {namespaces: [shop, shop]}}", "Duplicate value"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, use: {namespaces: [" + repeat(257, func(i int) string { return fmt.Sprint("n", i) }) + "]}}", "at most 256"},
		{"ServicePlugin", strings.Repeat("n", 64), "{source: {type: Bundled, bundled: {name: near}}}", "at most 63 characters"},
		{"ServicePlugin", "near", "{source: {type: Bundled, bundled: {name: near}}, colour: red}", "unknown field"},

		{"ServicePolicy", "web", "{targetRefs: [{group: \"\", kind: Service, name: web, sectionName: http}], " + chain + "}", ""},
		{"ServicePolicy", "web", "{targetRefs: [" + ports(16) + "], " + chain + "}", ""},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}, {name: web, sectionName: http}], " + chain + "}", ""},
		{"ServicePolicy", "web", "{" + chain + "}", "spec.targetRefs"},
		{"ServicePolicy", "web", "{targetRefs: [], " + chain + "}", "at least 1"},
		{"ServicePolicy", "web", "{targetRefs: [" + ports(17) + "], " + chain + "}", "at most 16"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}, {name: web}], " + chain + "}", "the targets must be distinct"},
		{"ServicePolicy", "web", "{targetRefs: [{kind: Gateway, name: web}], " + chain + "}", "Unsupported value"},
		{"ServicePolicy", "web", "{targetRefs: [{group: apps, name: web}], " + chain + "}", "Unsupported value"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}]}", "plugins or trafficHint required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], trafficHint: LongLived}", ""},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], trafficHint: Short}", "Unsupported value"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], trafficHint: LongLived, mode: Shadow}", "plugins are required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], trafficHint: LongLived, guard: {failedPercent: 2}}", "plugins are required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: []}", "at least 1"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: [{name: a}, {name: a}]}", "Duplicate value"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: [" + repeat(9, func(i int) string { return fmt.Sprintf("{name: p%d}", i) }) + "]}", "at most 8"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: [{name: a, settings: {deep: {er: [1, 2]}}}]}", ""},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: [{name: a, settings: [1]}]}", "must be of type object"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], plugins: [{name: a, settings: {" + repeat(65, func(i int) string { return fmt.Sprintf("f%d: 1", i) }) + "}}]}", "at most 64"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {percent: 12.5}, guard: {failedPercent: 2, window: 1m}}", ""},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {}}", "one of percent and nodeSelector is required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {percent: 5, nodeSelector: {matchLabels: {a: b}}}}", "one of percent and nodeSelector is required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {percent: 0}}", "must be from 0.1 to 100"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {percent: 0.05}}", "must be from 0.1 to 100"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {percent: 101}}", "less than or equal to 100"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {nodeSelector: {}}}", "matchLabels or matchExpressions required"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {nodeSelector: {matchExpressions: [{key: a, operator: In}]}}}", "values are required with In"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", rollout: {nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}}", "values are required with In"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", guard: {failedPercent: 2, window: 4s}}", "must be from 5s to 10m"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", guard: {failedPercent: 2, window: soon}}", "should match"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", guard: {window: 30s}}", "failedPercent"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", mode: Shadow, guard: {failedPercent: 2}}", "a guard is for mode Enforce"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", mode: Maybe}", "Unsupported value"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", panic: {below: 50, hold: 2h}}", "must be from 1s to 1h"},
		{"ServicePolicy", "web", "{targetRefs: [{name: web}], " + chain + ", failurePolicy: Default, maxShedPercentPerSecond: 101}", "less than or equal to 100"},

		{"ClusterServicePolicy", "all", "{" + chain + "}", ""},
		{"ClusterServicePolicy", "all", "{namespaces: [shop], serviceSelector: {matchLabels: {tier: logic}}, overrides: true, " + chain + ", ignoreHints: true}", ""},
		{"ClusterServicePolicy", "all", "{serviceSelector: {}, " + chain + "}", "matchLabels or matchExpressions required"},
		{"ClusterServicePolicy", "all", "{serviceSelector: {matchLabels: {tier: " + strings.Repeat("x", 64) + "}}, " + chain + "}", "a value at most 63"},
		{"ClusterServicePolicy", "all", "{serviceSelector: {matchLabels: {" + repeat(17, func(i int) string { return fmt.Sprintf("l%d: v", i) }) + "}}, " + chain + "}", "at most 16"},
		{"ClusterServicePolicy", "all", "{targetRefs: [{name: web}], " + chain + "}", "unknown field"},

		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {cpu_utilization: \"0.5\", utilization/queue: \"12\"}}, {address: \"fd00::1\"}]", ""},
		{"EndpointLoad", "web", "[" + repeat(1000, func(i int) string { return fmt.Sprintf("{address: 10.0.%d.%d, values: {%s}}", i>>8, i&255, loads(32)) }) + "]", ""},
		{"EndpointLoad", "web", "[" + repeat(1001, func(i int) string { return fmt.Sprintf("{address: 10.0.%d.%d}", i>>8, i&255) }) + "]", "at most 1000"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {" + loads(33) + "}}]", "at most 32"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1}, {address: 10.0.0.1}]", "Duplicate value"},
		{"EndpointLoad", "web", "[{address: \"\"}]", "at least 1 char"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {eps: \"-1\"}}]", "should match"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {eps: NaN}}]", "should match"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {eps: \"1e9\"}}]", "should match"},
		{"EndpointLoad", "web", "[{address: 10.0.0.1, values: {eps: \"1234567890123\"}}]", "should match"},
	} {
		namespace := ""
		if c.kind == "ServicePolicy" || c.kind == "EndpointLoad" {
			namespace = "shop"
		}
		s.wantErr(c.kind+" "+c.spec[:min(len(c.spec), 200)], s.write(s.Client, "POST", object(c.kind, namespace, c.name, c.spec), true), c.want)
	}
	huge := object("ServicePolicy", "shop", "huge", `{targetRefs: [{name: web}], plugins: [{name: a, settings: {blob: "`+strings.Repeat("x", 4<<20)+`"}}]}`)
	s.wantErr("4 MiB", s.write(s.Client, "POST", huge, false), "too large")
}

// loads returns values of an endpoint.
func loads(n int) string {
	return repeat(n, func(i int) string { return fmt.Sprintf("utilization/u%d: \"0.5\"", i) })
}

// testLoads checks that who may write EndpointLoads of one namespace only may write none.
func testLoads(s *server) {
	must(s.t, s.Apply(s.t.Context(), `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: loads}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: loads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: loads}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: everywhere}]
`))
	web, err := s.Client.CoreV1().Services("shop").Create(s.t.Context(), testcluster.Service("shop", "web", netip.Addr{}, 80), metav1.CreateOptions{})
	must(s.t, err)
	load := strings.Replace(object("EndpointLoad", "shop", "web", `[{address: 10.0.0.1, values: {eps: "1"}}]`), absent, string(web.UID), 1)
	tenant, everywhere, viewer := s.user("load-tenant", "shop", "loads"), s.user("everywhere", "shop", "view"), s.user("load-viewer", "shop", "view")
	testenv.Within(s.t, time.Minute, "the admission policy is in force", func() bool {
		err := s.write(tenant, "POST", load, true)
		return err != nil && strings.Contains(err.Error(), "sluice-endpointload-writer")
	})
	const owners = "the only owner of an EndpointLoad is the Service of its name"
	for _, c := range []struct {
		name, verb string
		as         *kubernetes.Clientset
		load, want string
	}{
		{"who may write all", "POST", everywhere, load, ""},
		{"again", "PATCH", everywhere, load, ""},
		{"a tenant with all rights", "PATCH", tenant, load, "EndpointLoads are written by who has the right"},
		{"who may read", "PATCH", viewer, load, "forbidden"},
		{"owned by another Service", "PATCH", everywhere, strings.Replace(load, "kind: Service, name: web", "kind: Service, name: other", 1), owners},
		{"owned by a Pod", "PATCH", everywhere, strings.Replace(load, "kind: Service", "kind: Pod", 1), owners},
	} {
		s.wantErr(c.name, s.write(c.as, c.verb, c.load, false), c.want)
	}
	out, err := s.Kubectl(s.t.Context(), "", "get", "sel", "-A")
	if must(s.t, err); !strings.Contains(strings.Join(strings.Fields(out), " "), "NAMESPACE NAME REPORTING SILENT MESSAGE AGE shop web") {
		s.t.Error(out)
	}
}

// testColumns checks the names and columns of kubectl get.
func testColumns(s *server) {
	ctx := s.t.Context()
	must(s.t, s.write(s.Client, "POST", object("ServicePlugin", "", "near", "{source: {type: Bundled, bundled: {name: near}}}"), false))
	must(s.t, s.write(s.Client, "POST", object("ServicePolicy", "shop", "web", "{targetRefs: [{name: web}], plugins: [{name: near}, {name: outlier}]}"), false))
	must(s.t, s.write(s.Client, "POST", object("ClusterServicePolicy", "", "all", "{plugins: [{name: near}]}"), false))
	status := `{"status":{"programmedNodes":"48/50","nodes":{"desired":50,"inForce":48,"failed":1,"fallenBack":1},"conditions":[
		{"type":"Accepted","status":"True","reason":"Accepted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"},
		{"type":"Programmed","status":"False","reason":"PartiallyProgrammed","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	_, err := s.Kubectl(ctx, "", "-n", "shop", "patch", "spol", "web", "--subresource=status", "--type=merge", "-p", status)
	must(s.t, err)
	for _, c := range []struct{ of, want string }{
		{"spl", "NAME SOURCE ACCEPTED PROGRAMMED NODES AGE near Bundled"},
		{"spol", "NAMESPACE NAME PLUGIN MODE ACCEPTED PROGRAMMED NODES FALLEN BACK AGE shop web near Enforce True False 48/50 1"},
		{"cspol", "NAME PLUGIN MODE OVERRIDES ACCEPTED PROGRAMMED NODES FALLEN BACK AGE all near Enforce"},
		{"sluice", "servicepolicy.sluice.dev/web"},
	} {
		out, err := s.Kubectl(ctx, "", "get", c.of, "-A")
		must(s.t, err)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), c.want) {
			s.t.Errorf("kubectl get %s:\n%s\nwant %q", c.of, out, c.want)
		}
	}
	out, err := s.Kubectl(ctx, "", "explain", "servicepolicy.spec.rollout.percent")
	if must(s.t, err); !strings.Contains(strings.Join(strings.Fields(out), " "), "nodes that have the policy keep it") {
		s.t.Error(out)
	}
}

// nodeToken returns a token of a Pod of the service account on a node.
func (s *server) nodeToken(account, node string) string {
	ctx := s.t.Context()
	must(s.t, s.AddNode(ctx, testcluster.Node{Name: node}))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: account + "-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "lab.invalid/main"}}},
	}
	made, err := s.Client.CoreV1().Pods("kube-system").Create(ctx, pod, metav1.CreateOptions{})
	must(s.t, err)
	got, err := s.Client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, account, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: made.Name, UID: made.UID}},
	}, metav1.CreateOptions{})
	must(s.t, err)
	return got.Status.Token
}

// testReports checks that a node writes its own NodeReport only.
func testReports(s *server) {
	ctx := s.t.Context()
	must(s.t, s.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reporter, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reporter}
rules: [{apiGroups: [sluice.dev], resources: [nodereports], verbs: [create, get, patch, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reporter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reporter}
subjects: [{kind: ServiceAccount, name: reporter, namespace: kube-system}]
`))
	report := func(node, owner string) string {
		return fmt.Sprintf(`{"apiVersion":"sluice.dev/v1alpha1","kind":"NodeReport","metadata":{"name":%q%s},"report":{"version":"0.1","policyCount":3}}`, node, owner)
	}
	n1, n2 := s.as(s.nodeToken("reporter", "n1")), s.as(s.nodeToken("reporter", "n2"))
	first, err := s.Client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	must(s.t, err)
	owner := func(kind, name string) string {
		return fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"v1","kind":%q,"name":%q,"uid":%q}]`, kind, name, first.UID)
	}
	unbound, err := s.Token(ctx, "kube-system", "reporter")
	must(s.t, err)
	testenv.Within(s.t, time.Minute, "the admission policy is in force", func() bool {
		err := s.write(n2, "POST", report("n1", owner("Node", "n1")), true)
		return err != nil && strings.Contains(err.Error(), "sluice-nodereport-owner")
	})
	const others, owners = "is written by the Pod of sluice on that Node only", "the only owner of a NodeReport is its Node"
	for _, c := range []struct {
		name, verb string
		as         *kubernetes.Clientset
		report     string
		want       string
	}{
		{"its own", "POST", n1, report("n1", owner("Node", "n1")), ""},
		{"its own, again", "PATCH", n1, report("n1", owner("Node", "n1")), ""},
		{"another node's", "PATCH", n2, report("n1", owner("Node", "n1")), others},
		{"another node's, which has none", "POST", n1, report("n2", owner("Node", "n2")), others},
		{"of no node", "POST", n1, report("n9", owner("Node", "n9")), others},
		{"with a token that names no node", "POST", s.as(unbound), report("n2", owner("Node", "n2")), others},
		{"by an administrator", "POST", s.Client, report("n2", owner("Node", "n2")), others},
		{"without an owner", "POST", n2, report("n2", ""), owners},
		{"owned by another Node", "POST", n2, report("n2", owner("Node", "n1")), owners},
		{"owned by a Pod", "POST", n2, report("n2", owner("Pod", "n2")), owners},
	} {
		s.wantErr(c.name, s.write(c.as, c.verb, c.report, false), c.want)
	}
	s.wantErr("deletes another node's", s.write(n2, "DELETE", report("n1", ""), false), "forbidden")
}

// testTenants checks what the roles of a namespace reach.
func testTenants(s *server) {
	edit, view := s.user("ann", "lab", "edit"), s.user("bob", "lab", "view")
	mine := object("ServicePolicy", "lab", "mine", "{targetRefs: [{name: web}], plugins: [{name: near}]}")
	testenv.Within(s.t, time.Minute, "the roles are aggregated", func() bool { return s.write(edit, "POST", mine, true) == nil })
	s.wantErr("own namespace", s.write(edit, "POST", mine, false), "")
	s.wantErr("another namespace", s.write(edit, "POST", strings.ReplaceAll(mine, "lab", "shop"), false), "forbidden")
	s.wantErr("view writes", s.write(view, "DELETE", mine, false), "forbidden")
	s.wantErr("ClusterServicePolicy", s.write(edit, "POST", object("ClusterServicePolicy", "", "mine", "{plugins: [{name: near}]}"), false), "forbidden")
	s.wantErr("ServicePlugin", s.write(edit, "POST", object("ServicePlugin", "", "mine", "{source: {type: Bundled, bundled: {name: near}}}"), false), "forbidden")
	get := func(client *kubernetes.Clientset, path string) error {
		return client.CoreV1().RESTClient().Get().AbsPath("/apis/sluice.dev/v1alpha1/" + path).Do(s.t.Context()).Error()
	}
	s.wantErr("view reads its own", get(view, "namespaces/lab/servicepolicies/mine"), "")
	for _, path := range []string{"namespaces/shop/servicepolicies/web", "servicepolicies", "clusterservicepolicies", "serviceplugins", "nodereports"} {
		s.wantErr("reads "+path, get(edit, path), "forbidden")
	}
	status := client(edit).Patch("application/merge-patch+json").AbsPath("/apis/sluice.dev/v1alpha1/namespaces/lab/servicepolicies/mine/status").Body([]byte(`{"status":{"programmedNodes":"1/1"}}`))
	s.wantErr("forges a status", request(s.t.Context(), status), "forbidden")
}

func client(c *kubernetes.Clientset) verber { return verber{c.CoreV1().RESTClient()} }

type verber struct{ rest.Interface }

func (v verber) Patch(contentType string) *rest.Request {
	return v.Verb("PATCH").SetHeader("Content-Type", contentType)
}

func request(ctx context.Context, r *rest.Request) error { return r.Do(ctx).Error() }

// testOlderObjects checks that an object that an older version of the kinds has stored stays writable, also if a newer rule
// refuses it, as long as what the rule is about does not change.
func testOlderObjects(s *server) {
	ctx := s.t.Context()
	crd, err := s.Kubectl(ctx, "", "get", "crd", "servicepolicies.sluice.dev", "-o", "json")
	must(s.t, err)
	older := strings.ReplaceAll(crd, `"maxItems": 8,`, `"maxItems": 9,`) // of plugins
	if older == crd {
		s.t.Fatal("the bound of plugins is not in the schema")
	}
	replace := func(manifest string) {
		var o map[string]any
		must(s.t, json.Unmarshal([]byte(manifest), &o))
		delete(o["metadata"].(map[string]any), "resourceVersion")
		text, err := json.Marshal(o)
		must(s.t, err)
		_, err = s.Kubectl(ctx, string(text), "replace", "-f", "-")
		must(s.t, err)
	}
	replace(older)
	nine := object("ServicePolicy", "shop", "old", "{targetRefs: [{name: web}], plugins: ["+repeat(9, func(i int) string { return fmt.Sprintf("{name: p%d}", i) })+"]}")
	testenv.Within(s.t, time.Minute, "the older version is in force", func() bool { return s.write(s.Client, "POST", nine, false) == nil })
	replace(crd)
	testenv.Within(s.t, time.Minute, "the version is in force", func() bool { return s.write(s.Client, "POST", strings.Replace(nine, "old", "new", 1), true) != nil })
	_, err = s.Kubectl(ctx, "", "-n", "shop", "patch", "spol", "old", "--type=merge", "-p", `{"spec":{"mode":"Shadow"}}`)
	s.wantErr("another field changes", err, "")
	_, err = s.Kubectl(ctx, "", "-n", "shop", "patch", "spol", "old", "--type=json", "-p", `[{"op":"replace","path":"/spec/plugins/0/name","value":"q"}]`)
	s.wantErr("the list changes", err, "at most 8")
}

// testDowngrade checks that the kinds are not replaced by those of an older version.
func testDowngrade(s *server) {
	ctx := s.t.Context()
	annotate := func(value string) error {
		_, err := s.Kubectl(ctx, "", "annotate", "--overwrite", "crd", "servicepolicies.sluice.dev", "sluice.dev/schema"+value)
		return err
	}
	testenv.Within(s.t, time.Minute, "the admission policy is in force", func() bool {
		_, err := s.Kubectl(ctx, "", "annotate", "--overwrite", "--dry-run=server", "crd", "servicepolicies.sluice.dev", "sluice.dev/schema=0")
		return err != nil && strings.Contains(err.Error(), "sluice-crd-downgrade")
	})
	for _, c := range []struct{ value, want string }{
		{"=1", ""}, {"=2", ""}, {"=1", "is older than schema 2, which is installed"}, {"-", "is older than schema 2"}, {"=x", "is older than schema 2"}, {"=10", ""},
	} {
		s.wantErr("annotation "+c.value, annotate(c.value), c.want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
