package helm

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/host/lab/helm"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
)

const (
	chart      = "sluice"
	kindsChart = "sluice-crds"
)

// values are those that have no default.
const values = "image: {repository: registry.example.com/sluice, tag: latest}\nconfig: {clientConnection: {server: 'https://192.0.2.10:6443'}}\n"

// run runs Helm, and returns its output and its error.
func run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(helm.Program(t), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), append([]string{"HOME=" + home, "XDG_CACHE_HOME=" + home, "XDG_CONFIG_HOME=" + home, "XDG_DATA_HOME=" + home}, env...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// objects decodes manifests, by kind and name. Labels of Helm are dropped, and the configuration is decoded.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o == nil {
			continue
		}
		meta := o["metadata"].(map[string]any)
		if labels, ok := meta["labels"].(map[string]any); ok {
			delete(labels, "helm.sh/chart")
			delete(labels, "app.kubernetes.io/managed-by")
		}
		if data, ok := o["data"].(map[string]any); ok {
			var c map[string]any
			if err := yaml.Unmarshal([]byte(data["sluice.yaml"].(string)), &c); err != nil {
				t.Fatal(err)
			}
			data["sluice.yaml"] = c
		}
		out[o["kind"].(string)+" "+meta["name"].(string)] = o
	}
	return out
}

// TestChartIsEqualToKustomize compares the objects of the chart with those of the kubeadm overlay with each component.
func TestChartIsEqualToKustomize(t *testing.T) {
	tools, err := binaries.Find("kubectl")
	testenv.Require(t, err)
	work := t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "kustomize"), os.DirFS("../kustomize")); err != nil {
		t.Fatal(err)
	}
	for component, c := range map[string]struct{ values, config string }{
		"":                  {},
		"some-nodes":        {values: "nodes: Labeled"},
		"no-init":           {values: "init: {enabled: false}"},
		"ipvs-modules":      {values: "init: {loadModules: true}"},
		"pods":              {values: "readPods: true"},
		"controller":        {values: "controller: {enabled: true}"},
		"namespaces":        {values: "readNamespaces: true"},
		"kubectl":           {values: "kubectl: {enabled: true}", config: "stateBindAddress: 127.0.0.1:10252"},
		"prometheus":        {values: "prometheus: {enabled: true}", config: "metricsBindAddress: 0.0.0.0:10249"},
		"modules-configmap": {values: "modules: {configMap: sluice-modules}"},
		"modules-image":     {values: "modules: {image: registry.example.com/modules:latest}"},
		"pull-secret":       {values: "pluginPullSecret: sluice-pull", config: "pluginImages: {dockerConfig: /etc/sluice-pull/.dockerconfigjson}"},
	} {
		t.Run(component, func(t *testing.T) {
			overlay := filepath.Join(work, "kustomize", "overlays", "kubeadm")
			text, err := os.ReadFile("../kustomize/overlays/kubeadm/kustomization.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if component != "" {
				text = append(text, "components: [../../components/"+component+"]\n"...)
			}
			settings, err := os.ReadFile("../kustomize/overlays/kubeadm/sluice.yaml")
			if err != nil {
				t.Fatal(err)
			}
			settings = append(settings, c.config...)
			for name, text := range map[string][]byte{"kustomization.yaml": text, "sluice.yaml": settings} {
				if err := os.WriteFile(filepath.Join(overlay, name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := exec.Command(filepath.Join(tools, "kubectl"), "kustomize", overlay).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want := objects(t, string(out))
			delete(want, "Namespace sluice-system") // Helm's --create-namespace

			var fields map[string]any
			if err := yaml.Unmarshal(settings, &fields); err != nil {
				t.Fatal(err)
			}
			delete(fields, "apiVersion")
			delete(fields, "kind")
			if component == "kubectl" || component == "pull-secret" {
				for field := range strings.SplitSeq(c.config, ":") { // the chart sets it
					delete(fields, field)
					break
				}
			}
			own, err := yaml.Marshal(map[string]any{"config": fields, "image": map[string]any{"repository": "registry.example.com/sluice", "tag": "latest"}})
			if err != nil {
				t.Fatal(err)
			}
			text2, err := run(t, nil, "template", "sluice", chart, "-n", "sluice-system", "-f", file(t, string(own)+c.values+"\n"))
			if err != nil {
				t.Fatalf("%v\n%s", err, text2)
			}
			_, manifests, found := strings.Cut(text2, "---\n") // Helm writes about the symbolic link before
			if !found {
				t.Fatal(text2)
			}
			got := objects(t, manifests)
			for name, o := range want {
				if meta := o["metadata"].(map[string]any); meta["labels"] == nil && got[name] != nil { // kustomize gives none to the objects of components
					delete(got[name]["metadata"].(map[string]any), "labels")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
			}
		})
	}
}

// TestChartLints runs helm lint, which fails for each warning.
func TestChartLints(t *testing.T) {
	if out, err := run(t, nil, "lint", "--strict", chart, "-f", file(t, values)); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestValuesAreDocumentedAndChecked compares values.yaml, its comments and values.schema.json, and the schema with the
// configuration of sluice.
func TestValuesAreDocumentedAndChecked(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type schema struct {
		Properties map[string]schema
	}
	var want schema
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	delete(want.Properties, "global") // Helm's
	var have map[string]any
	if err := yaml.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	documented := func(line string) bool {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, line) })
		for at--; at >= 0 && strings.HasPrefix(strings.TrimSpace(lines[at]), "# "); at-- {
			if strings.HasPrefix(strings.TrimSpace(lines[at]), "# -- ") {
				return true
			}
		}
		return false
	}
	for name, s := range want.Properties {
		if name == "config" || len(s.Properties) == 0 {
			if !documented(name + ":") {
				t.Errorf("%s has no comment", name)
			}
			continue
		}
		sub, _ := have[name].(map[string]any)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(sub))); diff != "" {
			t.Errorf("%s: schema (-) and values.yaml (+) differ:\n%s", name, diff)
		}
		for field := range s.Properties {
			if !documented("  " + field + ":") {
				t.Errorf("%s.%s has no comment", name, field)
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want.Properties)), slices.Sorted(maps.Keys(have))); diff != "" {
		t.Errorf("schema (-) and values.yaml (+) differ:\n%s", diff)
	}
	var fields []string
	for f := range reflect.TypeFor[config.Config]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && name != "" {
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(want.Properties["config"].Properties))); diff != "" {
		t.Errorf("configuration (-) and schema of config (+) differ:\n%s", diff)
	}
}

// TestBadValuesAreNamed: an error names the value, and what to do.
func TestBadValuesAreNamed(t *testing.T) {
	for bad, want := range map[string]string{
		"image: {repository: ''}":                                    "image.repository: set it",
		"config: {clientConnection: null}":                           "clientConnection",
		"config: {clusterCIDRs: 10.0.0.0/8}":                         "clusterCIDRs",
		"config: {plugins: {}}":                                      "plugins",
		"nodes: Some":                                                "nodes",
		"image: {digest: sha256:abc}":                                "digest",
		"imagePullSecret: a":                                         "imagePullSecret",
		"prometheus: {enabled: true}":                                "set config.metricsBindAddress",
		"modules: {configMap: a, image: b}":                          "modules.configMap and modules.image",
		"maxUnavailable: 0":                                          "maxUnavailable",
		"tolerations: Exists":                                        "tolerations",
		"kubeProxy: {name: ''}":                                      "name",
		"config: {kind: Other}":                                      "kind",
		"init: {enabled: 'no'}":                                      "enabled",
		"image: {tag: 'a b'}":                                        "tag",
		"pluginPullSecret: [a]":                                      "pluginPullSecret",
		"config: {clientConnection: {server: null, kubeconfig: ''}}": "config.clientConnection.server: set it",
	} {
		out, err := run(t, nil, "template", "sluice", chart, "-f", file(t, values), "-f", file(t, bad+"\n"))
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want %q in\n%s", bad, err, want, out)
		}
	}
}

// TestReleaseAtAnAPIServer installs, upgrades, rolls back and removes a release at a real API server, which has no kubelets: what
// is refused, what is found in the cluster, and what an upgrade keeps.
func TestReleaseAtAnAPIServer(t *testing.T) {
	ctx := t.Context()
	_, err := binaries.Find(binaries.Cluster()...)
	testenv.Require(t, err)
	c, err := testcluster.Start(ctx, testcluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	env := []string{"KUBECONFIG=" + filepath.Join(c.Dir(), "admin.kubeconfig")}
	try := func(args ...string) (string, error) {
		return run(t, env, append([]string{"-n", "sluice-system"}, args...)...)
	}
	install := func(more ...string) (string, error) {
		return try(append([]string{"upgrade", "--install", "--create-namespace", "sluice", chart, "--set", "image.repository=registry.example.com/sluice"}, more...)...)
	}
	refused := func(when, want string, more ...string) {
		t.Helper()
		if out, err := install(more...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want %q in\n%s", when, err, want, out)
		}
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(ctx, "", args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	refused("a cluster without kube-proxy", "config.clientConnection.server: set it")
	if err := c.Apply(ctx, kubeProxy); err != nil {
		t.Fatal(err)
	}
	refused("kube-proxy on all nodes", "DaemonSet kube-system/kube-proxy runs on all nodes")
	kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "strategic", "-p", `{"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {
"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "sluice.dev/proxy", "operator": "NotIn", "values": ["sluice"]}]}]}}}}}}}`)
	refused("kube-proxy on the nodes without the label", "nodes: All: DaemonSet kube-system/kube-proxy still runs")
	if err := c.AddNode(ctx, testcluster.Node{Name: "left-over"}); err != nil {
		t.Fatal(err)
	}
	kubectl("label", "node", "left-over", "sluice.dev/proxy=sluice")
	refused("a label of an earlier installation", "Node left-over has the label", "--set", "nodes=Labeled")
	kubectl("label", "node", "left-over", "sluice.dev/proxy-")
	cilium := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cilium-config"}, Data: map[string]string{"kube-proxy-replacement": "true"}}
	if _, err := c.Client.CoreV1().ConfigMaps("kube-system").Create(ctx, cilium, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused("Cilium's replacement", "Cilium replaces kube-proxy", "--set", "nodes=Labeled")
	kubectl("-n", "kube-system", "delete", "configmap", "cilium-config")
	kubectl("create", "namespace", "sluice-system")
	kubectl("label", "namespace", "sluice-system", "pod-security.kubernetes.io/enforce=baseline")
	refused("a namespace of the level baseline", "Namespace sluice-system enforces the Pod Security level baseline", "--set", "nodes=Labeled")
	kubectl("delete", "namespace", "sluice-system")

	installed := func(when string, more ...string) {
		t.Helper()
		if out, err := install(more...); err != nil {
			t.Fatalf("%s: %v\n%s", when, err, out)
		}
	}
	settings := func() *config.Config {
		t.Helper()
		m, err := c.Client.CoreV1().ConfigMaps("sluice-system").Get(ctx, "sluice", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := config.Parse([]byte(m.Data["sluice.yaml"]), config.InPodDir)
		if err != nil {
			t.Fatal(err)
		}
		if problems, _ := got.InPod(); len(problems) > 0 {
			t.Errorf("in a Pod: %v", problems)
		}
		return got
	}
	found := func(when string) {
		t.Helper()
		got := settings()
		if got.ClientConnection.Server != "https://192.0.2.7:6443" || len(got.ClusterCIDR) != 1 || got.ClusterCIDR[0].String() != "10.9.0.0/16" {
			t.Errorf("%s: server %s, Pods %v", when, got.ClientConnection.Server, got.ClusterCIDR)
		}
	}
	generation := func() int64 {
		t.Helper()
		d, err := c.Client.AppsV1().DaemonSets("sluice-system").Get(ctx, "sluice", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d.Generation
	}
	installed("the labeled nodes", "--set", "nodes=Labeled")
	found("installed")
	before := generation()
	installed("the same again", "--set", "nodes=Labeled")
	installed("a field of the configuration", "--set", "nodes=Labeled,config.logging.verbosity=1")
	if now := generation(); now != before {
		t.Errorf("generation %d of the DaemonSet after a change of the configuration only, %d before", now, before)
	}
	if v := settings().Logging.Verbosity; v != 1 {
		t.Errorf("verbosity %d", v)
	}
	kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "merge", "-p", `{"spec": {"template": {"spec": {"nodeSelector": {"sluice.dev/proxy": "none"}}}}}`)
	installed("all nodes")
	kubectl("-n", "kube-system", "delete", "daemonset,configmap", "kube-proxy")
	installed("kube-proxy is deleted", "--set", "image.tag=next")
	found("without kube-proxy")
	if out, err := try("rollback", "sluice", "2"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	found("rolled back")
	d, err := c.Client.AppsV1().DaemonSets("sluice-system").Get(ctx, "sluice", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Spec.Template.Spec; got.NodeSelector["sluice.dev/proxy"] != "sluice" || strings.HasSuffix(got.Containers[0].Image, ":next") {
		t.Errorf("after the rollback: %s on %v", got.Containers[0].Image, got.NodeSelector)
	}
	if out, err := try("uninstall", "sluice", "--wait=legacy"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left := kubectl("get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=sluice", "-o", "name") +
		kubectl("-n", "sluice-system", "get", "daemonsets,serviceaccounts,roles,configmaps", "-l", "app.kubernetes.io/name=sluice", "-o", "name"); left != "" {
		t.Errorf("left after uninstall:\n%s", left)
	}
}

// kubeProxy is what kubeadm installs, as far as the chart reads it.
const kubeProxy = `
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: |-
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    clusterCIDR: 10.9.0.0/16
    detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
    detectLocalMode: ""
  kubeconfig.conf: |-
    apiVersion: v1
    kind: Config
    clusters:
    - cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: "https://192.0.2.7:6443"}
      name: default
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      nodeSelector: {kubernetes.io/os: linux}
      containers: [{name: kube-proxy, image: registry.example.com/kube-proxy}]
`

// TestKindsAreEqualToKustomize compares the chart of the kinds with the kustomization. The kinds stay when the chart is
// uninstalled.
func TestKindsAreEqualToKustomize(t *testing.T) {
	tools, err := binaries.Find("kubectl")
	testenv.Require(t, err)
	out, err := exec.Command(filepath.Join(tools, "kubectl"), "kustomize", "../kustomize/crds").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := run(t, nil, "template", "sluice-crds", kindsChart)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	_, manifests, _ := strings.Cut(text, "---\n") // Helm writes about the symbolic links before
	want, got := objects(t, string(out)), objects(t, manifests)
	kept := 0
	for name, o := range got {
		annotations, _ := o["metadata"].(map[string]any)["annotations"].(map[string]any)
		if annotations["helm.sh/resource-policy"] != "keep" {
			continue
		}
		kept++
		if !strings.HasPrefix(name, "CustomResourceDefinition ") {
			t.Errorf("%s is kept", name)
		}
		delete(annotations, "helm.sh/resource-policy")
	}
	if kept != 5 {
		t.Errorf("%d kinds are kept", kept)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kustomize (-) and the chart (+) differ:\n%s", diff)
	}
	if out, err := run(t, nil, "lint", "--strict", kindsChart); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
