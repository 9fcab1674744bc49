package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/strictyaml"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// kubeProxyInput is what the input of KubeProxy contains. All parts but one of config and flags are optional.
type kubeProxyInput struct {
	config     map[string]any // KubeProxyConfiguration
	flags      []string       // kube-proxy's command line, without the program
	kubeconfig map[string]any // kube-proxy's kubeconfig
	cluster    map[string]any // kubeadm's ClusterConfiguration
	configs    int
	twice      []string // messages about keys that are there twice
	kinds      []string // of the other documents
	hasFlags   bool
}

// readKubeProxy reads a KubeProxyConfiguration, alone or among kubeadm's documents, in ConfigMaps as kubectl prints them, or the
// command line of kube-proxy: as text, in the log of k3s, or in a Pod or DaemonSet.
func readKubeProxy(b []byte, flags []string) (*kubeProxyInput, error) {
	in := &kubeProxyInput{flags: flags, hasFlags: len(flags) > 0}
	if line, ok := commandLine(b); ok {
		in.flags, in.hasFlags = append(slices.Clone(flags), line...), true
		return in, nil
	}
	if err := in.documents(string(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))), 0); err != nil {
		return nil, err
	}
	switch {
	case in.configs > 1:
		return nil, fmt.Errorf("%d documents of kind %s: expected one", in.configs, config.KubeProxyKind)
	case in.configs == 0 && !in.hasFlags && len(in.kinds) == 0:
		return nil, fmt.Errorf("0 documents: expected one %s", config.KubeProxyKind)
	case in.configs == 0 && !in.hasFlags:
		return nil, fmt.Errorf("kind: %s: must be %s, or a ConfigMap that contains one, or a Pod or DaemonSet that runs kube-proxy",
			strings.Join(in.kinds, ", "), config.KubeProxyKind)
	}
	return in, nil
}

// commandLine returns the flags of text that is a command line of kube-proxy: from a shell, /proc/PID/cmdline, or the last one in
// a log of k3s or RKE2 ("Running kube-proxy --cluster-cidr=…").
func commandLine(b []byte) ([]string, bool) {
	const logged = "Running kube-proxy "
	text := strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(string(b), "\\\n", " "), "\x00", " "))
	if at := strings.LastIndex(text, logged); at >= 0 && !strings.Contains(text, config.KubeProxyKind) {
		line, _, _ := strings.Cut(text[at+len(logged):], "\n")
		return strings.Fields(strings.TrimRight(line, "\" \r")), true
	}
	words := strings.Fields(text)
	switch {
	case len(words) == 0:
		return nil, false
	case path.Base(words[0]) == "kube-proxy":
		words = words[1:]
	case !strings.HasPrefix(words[0], "--") || strings.HasPrefix(words[0], "---"):
		return nil, false
	}
	for i, w := range words {
		words[i] = strings.NewReplacer(`"`, "", `'`, "").Replace(w)
	}
	return words, true
}

// maxNested is the depth of documents in documents: a List of ConfigMaps with documents.
const maxNested = 3

func (in *kubeProxyInput) documents(text string, depth int) error {
	for _, doc := range strictyaml.SplitYAML(text) {
		raw, twice, err := doc.ToJSON()
		if err != nil {
			return err
		}
		if twice != nil {
			in.twice = append(in.twice, strings.Split(twice.Error(), "\n")...)
		}
		tree, _, _ := strictyaml.ParseJSON(raw)
		if err := in.document(tree, depth); err != nil {
			return err
		}
	}
	return nil
}

func (in *kubeProxyInput) document(tree any, depth int) error {
	doc, ok := tree.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is not an object", strictyaml.Describe(tree))
	}
	switch kind, _ := doc["kind"].(string); {
	case kind == config.KubeProxyKind:
		if doc["apiVersion"] != kubeProxyVersion {
			return fmt.Errorf("apiVersion: %s: must be %s", strictyaml.Describe(doc["apiVersion"]), kubeProxyVersion)
		}
		in.config = doc
		in.configs++
	case kind == "ConfigMap" && depth < maxNested:
		return in.configMap(doc, depth)
	case kind == "List" && depth < maxNested:
		items, _ := doc["items"].([]any)
		for _, item := range items {
			if err := in.document(item, depth+1); err != nil {
				return err
			}
		}
	case kind == "Config" && doc["clusters"] != nil:
		in.kubeconfig = doc
	case kind == "ClusterConfiguration":
		in.cluster = doc
	case kind == "Pod":
		in.containers(doc)
	case kind == "DaemonSet":
		in.containers(object(doc, "spec", "template"))
	default:
		in.kinds = append(in.kinds, strictyaml.Describe(doc["kind"]))
	}
	return nil
}

// configMap reads the documents in the data of a ConfigMap; keys differ among installers.
func (in *kubeProxyInput) configMap(doc map[string]any, depth int) error {
	data := object(doc, "data")
	found := len(in.kinds)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		text, _ := data[key].(string)
		if !strings.Contains(text, "kind") {
			continue
		}
		if err := in.documents(text, depth+1); err != nil {
			return config.PrefixErrors("data."+key, err)
		}
	}
	in.kinds = append(in.kinds[:found], `"ConfigMap"`)
	return nil
}

// containers reads the command line of kube-proxy's container.
func (in *kubeProxyInput) containers(pod map[string]any) {
	list, _ := object(pod, "spec")["containers"].([]any)
	found := false
	for _, c := range list {
		c, _ := c.(map[string]any)
		words := expand(append(texts(c["command"]), texts(c["args"])...), c["env"])
		if len(words) > 0 && (path.Base(words[0]) == "kube-proxy" || c["name"] == "kube-proxy") {
			if !strings.HasPrefix(words[0], "-") {
				words = words[1:]
			}
			in.flags, in.hasFlags, found = append(in.flags, words...), true, true
		}
	}
	if !found {
		in.kinds = append(in.kinds, `"Pod" without kube-proxy`)
	}
}

// variable is a reference that the kubelet or a shell replaces: $(NAME), ${NAME} or $NAME.
var variable = regexp.MustCompile(`\$(\(\w+\)|\{\w+\}|[A-Z]\w*)`)

// expand replaces $(NAME) as the kubelet does, as far as the container's environment has values.
func expand(words []string, env any) []string {
	list, _ := env.([]any)
	for _, e := range list {
		e, _ := e.(map[string]any)
		name, _ := e["name"].(string)
		if value, ok := e["value"].(string); ok && name != "" {
			for i, w := range words {
				words[i] = strings.ReplaceAll(w, "$("+name+")", value)
			}
		}
	}
	return words
}

// server returns the API server's URL of the kubeconfig or of kubeadm's configuration, or "".
func (in *kubeProxyInput) server() (server, from string) {
	if in.kubeconfig != nil {
		if s := kubeconfigServer(in.kubeconfig); s != "" {
			return s, "from kube-proxy's kubeconfig"
		}
	}
	if s, _ := in.cluster["controlPlaneEndpoint"].(string); s != "" {
		if !strings.Contains(s, ":") {
			s += ":6443"
		}
		return "https://" + s, "from kubeadm's controlPlaneEndpoint"
	}
	return "", ""
}

// kubeconfigServer returns the server of the current context, or of the only cluster.
func kubeconfigServer(k map[string]any) string {
	named := func(list, name, field string) map[string]any {
		all, _ := k[list].([]any)
		for _, e := range all {
			if e, _ := e.(map[string]any); e != nil && (e["name"] == name || name == "" && len(all) == 1) {
				return object(e, field)
			}
		}
		return nil
	}
	current, _ := k["current-context"].(string)
	cluster, _ := named("contexts", current, "context")["cluster"].(string)
	server, _ := named("clusters", cluster, "cluster")["server"].(string)
	return server
}

// KubeconfigServer returns the API server's URL in a kubeconfig, or "".
func KubeconfigServer(b []byte) string {
	in := &kubeProxyInput{}
	if in.documents(string(b), 0) != nil || in.kubeconfig == nil {
		return ""
	}
	return kubeconfigServer(in.kubeconfig)
}

// fromCluster sets what kubeadm and the API server derive from a ClusterConfiguration.
func (m *migration) fromCluster(cluster map[string]any) {
	subnet, _ := object(cluster, "networking")["podSubnet"].(string)
	if subnet != "" && m.stringAt("clusterCIDR") == "" {
		m.in["clusterCIDR"] = subnet
		m.note(Changed, "clusterCIDR", "%s: from networking.podSubnet of kubeadm's ClusterConfiguration", subnet)
	}
	const flag = "service-node-port-range"
	ports := ""
	switch args := object(cluster, "apiServer")["extraArgs"].(type) {
	case map[string]any:
		ports, _ = args[flag].(string)
	case []any: // since v1beta4
		for _, a := range args {
			if a, _ := a.(map[string]any); a["name"] == flag {
				ports, _ = a["value"].(string)
			}
		}
	}
	if ports != "" && m.in["nodePortRange"] == nil {
		m.in["nodePortRange"] = ports
	}
}

// object returns the object at a path, or nil.
func object(tree map[string]any, names ...string) map[string]any {
	for _, n := range names {
		tree, _ = tree[n].(map[string]any)
	}
	return tree
}

func texts(list any) (out []string) {
	l, _ := list.([]any)
	for _, e := range l {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// number returns text as a number of the tree if it is one, otherwise as it is, so that parsing reports it.
func number(text string) any {
	var n json.Number
	if err := json.Unmarshal([]byte(text), &n); err == nil && !strings.HasPrefix(text, `"`) {
		return n
	}
	return text
}
