package migrate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const kubeadmConfigMap = `apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system, labels: {app: kube-proxy}}
data:
  config.conf: |-
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    bindAddress: 0.0.0.0
    clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
    clusterCIDR: 10.244.0.0/16
    configSyncPeriod: 0s
    kind: KubeProxyConfiguration
    logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}}, verbosity: 0}
    mode: ""
    oomScoreAdj: null
  kubeconfig.conf: |-
    apiVersion: v1
    kind: Config
    clusters:
    - cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: "https://192.0.2.10:6443"}
      name: default
    contexts: [{context: {cluster: default, namespace: default, user: default}, name: default}]
    current-context: default
    users: [{name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
`

// eksConfigMaps are those of EKS as a List: the configuration is in one, the kubeconfig in the other.
const eksConfigMaps = `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: kube-proxy-config, namespace: kube-system}
  data:
    config: |-
      apiVersion: kubeproxy.config.k8s.io/v1alpha1
      bindAddress: 0.0.0.0
      clientConnection: {acceptContentTypes: "", burst: 10, contentType: application/vnd.kubernetes.protobuf, kubeconfig: /var/lib/kube-proxy/kubeconfig, qps: 5}
      clusterCIDR: ""
      configSyncPeriod: 15m0s
      conntrack: {maxPerCore: 32768, min: 131072, tcpCloseWaitTimeout: 1h0m0s, tcpEstablishedTimeout: 24h0m0s}
      enableProfiling: false
      healthzBindAddress: 0.0.0.0:10256
      hostnameOverride: ""
      iptables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 30s}
      ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", syncPeriod: 30s}
      kind: KubeProxyConfiguration
      metricsBindAddress: 0.0.0.0:10249
      mode: "iptables"
      nodePortAddresses: null
      oomScoreAdj: -998
      portRange: ""
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: kube-proxy, namespace: kube-system}
  data:
    kubeconfig: |-
      kind: Config
      apiVersion: v1
      clusters:
      - cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: "https://abcdef.gr7.eu-west-1.eks.amazonaws.com"}
        name: default
      contexts: [{context: {cluster: default, namespace: default, user: default}, name: default}]
      current-context: default
`

const kubeadmFile = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: api.example.com:6443
networking: {podSubnet: "10.1.0.0/16,fd00:1::/48", serviceSubnet: 10.96.0.0/12}
apiServer: {extraArgs: [{name: service-node-port-range, value: 30000-35000}]}
---
` + kubeProxyHead + `mode: nftables
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
`

const k3sLine = "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s " +
	"--healthz-bind-address=127.0.0.1 --hostname-override=node-1 --kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig --proxy-mode=iptables"

const rke2Pod = `apiVersion: v1
kind: Pod
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  containers:
  - name: kube-proxy
    command: [kube-proxy]
    args: [--cluster-cidr=10.42.0.0/16, --conntrack-max-per-core=0, --conntrack-tcp-timeout-close-wait=0s, --conntrack-tcp-timeout-established=0s,
      --healthz-bind-address=127.0.0.1, --hostname-override=node-1, --kubeconfig=/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig, --proxy-mode=iptables]
`

func TestMigrateInputsOfInstallers(t *testing.T) {
	const inPod = "logging:\n  format: json\nmetricsBindAddress: 0.0.0.0:10249\n"
	const allNodePorts, pod = "nodePortAddresses:\n- 0.0.0.0/0\n- ::/0\n", "oomScoreAdj: -997\npluginCacheDir: /run/sluice/plugins\n"
	const version, kind = "apiVersion: sluice.dev/v1alpha1\n", "kind: SluiceConfiguration\n"
	const k3s = version + "clientConnection:\n  kubeconfig: /var/lib/rancher/k3s/agent/kubeproxy.kubeconfig\nclusterCIDR: 10.42.0.0/16\nconntrack:\n" +
		"  maxPerCore: 0\n  tcpCloseWaitTimeout: 0s\n  tcpEstablishedTimeout: 0s\nhealthzBindAddress: 127.0.0.1:10256\nhostnameOverride: node-1\n" + kind + allNodePorts
	k3sServer := func(file string) string {
		if file != "/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig" {
			t.Errorf("read %s", file)
		}
		return "https://127.0.0.1:6444"
	}
	for name, c := range map[string]struct {
		in   string
		o    Options
		want string
		lost string // what the input has no equivalent of
	}{
		"kubeadm's ConfigMap": {kubeadmConfigMap, Options{For: ForDaemonSet}, version + "clientConnection:\n  server: https://192.0.2.10:6443\nclusterCIDR: 10.244.0.0/16\n" +
			kind + strings.Replace(inPod, "metricsBindAddress: 0.0.0.0:10249\n", "", 1) + allNodePorts + pod, ""},
		"EKS's ConfigMaps": {eksConfigMaps, Options{For: ForDaemonSet}, version + "clientConnection:\n  server: https://abcdef.gr7.eu-west-1.eks.amazonaws.com\n" +
			kind + inPod + allNodePorts + pod, ""},
		"kubeadm's file": {kubeadmFile, Options{For: ForDaemonSet}, version + "clientConnection:\n  server: https://api.example.com:6443\nclusterCIDR: 10.1.0.0/16,fd00:1::/48\n" +
			kind + strings.Replace(inPod, "metricsBindAddress: 0.0.0.0:10249\n", "", 1) + "nodePortRange: 30000-35000\n" + pod, ""},
		"a command line":       {"/usr/bin/kube-proxy \\\n" + k3sLine, Options{}, k3s, ""},
		"a log of k3s":         {"x\nlevel=info msg=\"Running kube-proxy --cluster-cidr=10.0.0.0/8\"\nlevel=info msg=\"Running kube-proxy " + k3sLine + "\"\ny\n", Options{}, k3s, ""},
		"the Pod of RKE2":      {rke2Pod, Options{}, k3s, ""},
		"/proc/PID/cmdline":    {"kube-proxy\x00" + strings.ReplaceAll(k3sLine, " ", "\x00") + "\x00", Options{}, k3s, ""},
		"flags without a file": {"", Options{Flags: strings.Fields(strings.ReplaceAll(k3sLine, "=", " "))}, k3s, ""},
		"k3s in a Pod": {k3sLine, Options{For: ForDaemonSet, ReadKubeconfig: k3sServer}, strings.NewReplacer("kubeconfig: /var/lib/rancher/k3s/agent/kubeproxy.kubeconfig", "server: https://127.0.0.1:6444",
			"hostnameOverride: node-1\n", "", kind, kind+"logging:\n  format: json\n").Replace(k3s) + pod, ""},
		"no server in a Pod": {kubeProxyHead + "mode: nftables\nfeatureGates: {X: true}\n", Options{For: ForDaemonSet}, version + kind + "logging:\n  format: json\n" + pod, "clientConnection.server featureGates.X"},
		"a server that is given": {kubeProxyHead + "mode: nftables\n", Options{For: ForDaemonSet, Server: "https://192.0.2.1"},
			version + "clientConnection:\n  server: https://192.0.2.1\n" + kind + "logging:\n  format: json\n" + pod, ""},
		"flags of mode nftables": {"--proxy-mode=nftables --masquerade-all --nodeport-addresses=10.0.0.0/8,192.0.2.0/24 --feature-gates=A=true,B=false -v 2", Options{},
			version + kind + "logging:\n  verbosity: 2\nmasqueradeAll: true\nnodePortAddresses:\n- 10.0.0.0/8\n- 192.0.2.0/24\n", "featureGates.A"},
	} {
		t.Run(name, func(t *testing.T) {
			text, notes, err := KubeProxy([]byte(c.in), c.o)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, string(text)); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			var lost []string
			for i, n := range notes {
				if n.Kind == Lost {
					lost = append(lost, n.Path)
				}
				if i > 0 && notes[i-1].Kind > n.Kind {
					t.Errorf("%s: after notes of a later kind", n)
				}
			}
			if got := strings.Join(lost, " "); got != c.lost {
				t.Errorf("lost %q, want %q", got, c.lost)
			}
		})
	}
}

func TestMigrateFromIPTablesReportsThreeChangesOfBehavior(t *testing.T) {
	_, notes, err := KubeProxy([]byte(kubeadmConfigMap), Options{For: ForDaemonSet})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range notes {
		if n.Kind == Behavior {
			got = append(got, n.Path)
		}
	}
	if d := cmp.Diff([]string{"conntrack.tcpBeLiberal", "host firewalls", "mode"}, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// The words that 1.37 added are kept.
func TestMigrateNodePortAddressesOfKubernetes137(t *testing.T) {
	for words, want := range map[string]string{"[all]": "- all\n", "[primary, localhost]": "- primary\n- localhost\n", "[localhost]": "- localhost\n"} {
		text, notes, err := KubeProxy([]byte(kubeProxyHead+"mode: nftables\nnodePortAddresses: "+words+"\n"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(text); got != "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nnodePortAddresses:\n"+want || len(notes) > 0 {
			t.Errorf("%s: notes %v of\n%s", words, notes, text)
		}
	}
}

// kube-proxy of kubeadm and of EKS has a file, whose settings are not in its DaemonSet.
func TestMigrateRefusesACommandLineWithoutItsFile(t *testing.T) {
	const daemonSet = "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: kube-proxy}\nspec: {template: {spec: {containers: [{name: kube-proxy, " +
		"command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME)]}]}}}\n"
	for _, in := range []string{daemonSet, "kube-proxy --config /var/lib/kube-proxy/config.conf -v 2"} {
		if _, _, err := KubeProxy([]byte(in), Options{}); err == nil || !strings.Contains(err.Error(), "--config: /var/lib/kube-proxy/config.conf: ") {
			t.Errorf("%s: %v", in, err)
		}
	}
	text, _, err := KubeProxy([]byte(kubeadmConfigMap+daemonSet), Options{For: ForDaemonSet})
	if err != nil || !strings.Contains(string(text), "clusterCIDR: 10.244.0.0/16\n") {
		t.Errorf("with the file: %v\n%s", err, text)
	}
}
