package migrate

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/node/config"
)

// Targets of KubeProxy.
const (
	ForHost      = "host"
	ForDaemonSet = "daemonset"
)

// client sets clientConnection for the target.
func (m *migration) client(in *kubeProxyInput, o Options) error {
	const kubeconfig, server = "clientConnection.kubeconfig", "clientConnection.server"
	file, url := m.stringAt(kubeconfig), m.stringAt(server) // the latter is the flag --master
	m.take(server)
	from := "from kube-proxy's flag --master"
	if url == "" {
		url, from = in.server()
	}
	if url == "" && file != "" && o.ReadKubeconfig != nil {
		if url = o.ReadKubeconfig(file); url != "" {
			from = "from " + file + " on this host"
		}
	}
	if o.Server != "" {
		url, from = o.Server, "as given"
	}
	if err := config.CheckServer(url); err != nil {
		return fmt.Errorf("%s: %w", server, err)
	}
	if o.For != ForDaemonSet {
		if file != "" {
			m.note(Changed, kubeconfig, "%s: the file must exist for sluice too; without the field, sluice uses its Pod's service account", file)
			if raw, _ := json.Marshal(in.kubeconfig); strings.Contains(string(raw), config.InPodSecrets) {
				m.note(Behavior, kubeconfig, "%s uses the service account of kube-proxy's Pod: on a host, sluice needs a kubeconfig with credentials of its own", file)
			}
		}
		if o.Server != "" || file == "" && url != "" {
			m.put(server, url)
		}
		return nil
	}
	if file != "" {
		m.take(kubeconfig)
		m.note(Changed, kubeconfig, "%s: replaced with the token and CA of the service account of sluice's Pod", file)
	}
	if url == "" {
		m.note(Lost, server, "the address of the API server is not in the input: set --server URL, or migrate the whole ConfigMap "+
			"(kubectl -n kube-system get configmap kube-proxy -o yaml); without it, sluice starts only where the Service kubernetes already works")
		return nil
	}
	m.put(server, url)
	m.note(Changed, server, "%s: %s; it must work without a Service proxy", url, from)
	return nil
}

// target sets the other fields that depend on where sluice runs.
func (m *migration) target(o Options) {
	if o.For != ForDaemonSet {
		if m.unresolved != "" {
			m.note(Lost, "--hostname-override", "%s is not resolved: it is in the environment of kube-proxy; pass its value with --node, on each host whose name is another one", m.unresolved)
		}
		return
	}
	if v := m.take("hostnameOverride"); v != nil && v != "" || m.unresolved != "" {
		m.note(Changed, "hostnameOverride", "dropped: the DaemonSet sets --node to the name of its Pod's node")
	}
	if m.stringAt("logging.format") != config.LogJSON {
		m.take("logging.format")
		m.put("logging.format", config.LogJSON)
		m.note(Changed, "logging.format", "json: as the DaemonSet's other settings")
	}
	m.put("pluginCacheDir", config.InPodPluginCache)
	m.note(Changed, "pluginCacheDir", "%s: in the folder of the host that the DaemonSet mounts", config.InPodPluginCache)
	score, isNumber := m.in["oomScoreAdj"].(json.Number)
	if n, err := strconv.Atoi(string(score)); m.in["oomScoreAdj"] == nil || isNumber && err == nil && n < config.InPodOOMScoreAdj && n >= -1000 {
		m.take("oomScoreAdj")
		m.put("oomScoreAdj", json.Number(strconv.Itoa(config.InPodOOMScoreAdj)))
		m.note(Changed, "oomScoreAdj", "%d: the kubelet's value for system-node-critical Pods; a lower one requires a capability", config.InPodOOMScoreAdj)
	}
}
