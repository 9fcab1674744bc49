package config

import (
	"strings"
	"testing"
)

func TestInPodNamesWhatThePodDoesNotHave(t *testing.T) {
	for name, c := range map[string]struct{ text, problems, warnings string }{
		"the DaemonSet's": {`
clientConnection: {server: "https://192.0.2.1:6443"}
oomScoreAdj: -997
pluginCacheDir: /run/sluice/plugins
plugins: [{name: a, file: /plugins/locality.wasm}, {name: b, file: mine.wasm}, {name: c, file: /modules/near.wasm.gz}]
pluginImages: {dockerConfig: /etc/sluice/docker.json, caFile: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}
`, "", ""},
		"kube-proxy's": {`
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}
healthzBindAddress: 127.0.0.2:10256
`, `clientConnection.kubeconfig: /var/lib/kube-proxy/kubeconfig.conf is not in the Pod: the DaemonSet mounts /etc/sluice (the ConfigMap) and /run/sluice (of the host), and the image has /plugins
healthzBindAddress: "127.0.0.2:10256" does not serve 127.0.0.1:10256, which the DaemonSet's probes ask: the Pod never becomes ready`,
			""},
		"an oomScoreAdj that somebody has set": {`
clientConnection: {server: "https://192.0.2.1:6443"}
oomScoreAdj: -999
`, "", `oomScoreAdj: -999: lower than the kubelet's value for system-node-critical Pods, -997, which requires a capability that the Pod does not have`},
		"an oomScoreAdj that nobody has set": {`
clientConnection: {server: "https://192.0.2.1:6443"}
`, "", ""},
		"a host's": {`
hostnameOverride: n1
oomScoreAdj: 0
plugins: [{name: a, file: ../a.wasm}, {name: b, file: /etc/sluice-2/b.wasm}]
pluginCacheDir: /var/cache/sluice
healthzBindAddress: "[::]:10256"
`, `plugins[0].file: /etc/a.wasm is not in the Pod
plugins[1].file: /etc/sluice-2/b.wasm is not in the Pod
pluginCacheDir: /var/cache/sluice: a Pod of the DaemonSet may write to /run/sluice only`,
			`clientConnection.server: empty
hostnameOverride: n1: the DaemonSet sets --node`},
		"no cache": {`
clientConnection: {server: "https://192.0.2.1:6443"}
oomScoreAdj: -997
healthzBindAddress: ""
plugins: [{name: a, file: a.wasm}]
`, `healthzBindAddress: "" does not serve`, `pluginCacheDir: empty`},
	} {
		cfg, err := Parse([]byte(head+c.text), InPodDir)
		if err != nil {
			t.Fatal(err)
		}
		problems, warnings := cfg.InPod()
		for _, x := range []struct {
			got  []string
			want string
		}{{problems, c.problems}, {warnings, c.warnings}} {
			want := strings.FieldsFunc(x.want, func(r rune) bool { return r == '\n' })
			if len(x.got) != len(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(x.got, "\n"), x.want)
				continue
			}
			for i := range want {
				if !strings.HasPrefix(x.got[i], want[i]) {
					t.Errorf("%s: got\n%s\nwant\n%s", name, x.got[i], want[i])
				}
			}
		}
	}
}

func TestWarningsOfSchedulers(t *testing.T) {
	const ok = "clusterCIDR: 10.0.0.0/8\n"
	for text, want := range map[string]string{
		"":                                      "",
		"mode: ipvs\nipvs: {scheduler: wlcr}\n": `ipvs.scheduler: "wlcr" is not a scheduler of Linux (did you mean "wlc"?): the kernel needs a module ip_vs_wlcr`,
		"ipvs: {scheduler: wlcr}\n":             "",
		"mode: ipvs\nipvs: {scheduler: rr}\n":   "",
		"mode: ipvs\nipvs: {scheduler: rr}\npolicies: [{name: p, panic: {belowPercent: 10}}]\ndefaultPolicy: p\n": "ipvs.scheduler: rr does not use weights: policies can exclude endpoints and nothing else; wrr and wlc use them",
	} {
		cfg, err := Parse([]byte(head+ok+text), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(cfg.Warnings(), "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", text, got, want)
		}
	}
}
