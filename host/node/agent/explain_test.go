package agent

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// TestARunningSluiceNamesEndpointsWithoutAPort of the Service, as does the command without one.
func TestARunningSluiceNamesEndpointsWithoutAPort(t *testing.T) {
	r := newRig(t, "healthzBindAddress: ''\nmetricsBindAddress: ''\n")
	r.write("manifests/a.yaml", manifests+"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}\n"+
		"addressType: IPv4\nports: [{port: 8080, protocol: UDP}]\nendpoints: [{addresses: [10.244.0.1]}]\n")
	stop := r.run()
	testenv.Eventually(t, "the condition", func() bool {
		x, _ := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
		return x != nil && len(x.WithoutPort) == 1 && strings.Contains(x.WithoutPort[0], "their EndpointSlices have it with protocol UDP")
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
