package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// gatewayAPI is the module with the CustomResourceDefinitions, of which nothing is built.
const gatewayAPI = "sigs.k8s.io/gateway-api@v1.7.0"

// downloadGatewayAPI downloads the module. An error is none yet: the module may need a newer Go, and is there nevertheless.
func downloadGatewayAPI() { _ = exec.Command("go", "mod", "download", gatewayAPI).Run() }

// definitions returns the folder with those of the standard channel.
func definitions(t *testing.T) string {
	t.Helper()
	cache, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(cache)), gatewayAPI, "config/crd/standard")
	if _, err := os.Stat(dir); err != nil {
		testenv.Require(t, err)
	}
	return dir
}

// TestRoutesAtAnAPIServer: with the real CustomResourceDefinitions, installed after the controller has started, routes get a
// status, which stays; nodes read the same routes with their permissions.
func TestRoutesAtAnAPIServer(t *testing.T) {
	crds := definitions(t)
	s := newScene(t)
	defer s.controller("c1")()
	s.kubectl("apply", "--server-side", "-f", filepath.Join(crds, "gateway.networking.k8s.io_tcproutes.yaml"), "-f", filepath.Join(crds, "gateway.networking.k8s.io_udproutes.yaml"))
	s.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/tcproutes.gateway.networking.k8s.io", "crd/udproutes.gateway.networking.k8s.io")
	const route = `
apiVersion: gateway.networking.k8s.io/v1
kind: %sRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: web, port: %d, weight: 90}, {name: %s, port: %[2]d, weight: 10}]}]
`
	s.must(s.Apply(s.Context(), `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---`+fmt.Sprintf(route, "TCP", 80, "gone")+"---"+fmt.Sprintf(route, "UDP", 53, "web")))
	conditions := func(kind string) string {
		return s.kubectl("-n", "shop", "get", kind, "web", "-o", `jsonpath={range .status.parents[*]}{.controllerName} {range .conditions[*]}{.type}={.status}/{.reason}/{.observedGeneration} {end}{end}`)
	}
	for kind, want := range map[string]string{
		"tcproute": "sluice.dev/controller Accepted=True/Accepted/1 ResolvedRefs=False/BackendNotFound/1 ",
		"udproute": "sluice.dev/controller Accepted=True/Accepted/1 ResolvedRefs=True/ResolvedRefs/1 ",
	} {
		got := ""
		testenv.Eventually(t, kind, func() bool { got = conditions(kind); return got == want }, func() string { return got + "\n" + s.log.String() })
	}
	s.kubectl("-n", "shop", "patch", "tcproute", "web", "--type", "json", "-p", `[{"op": "replace", "path": "/spec/rules/0/backendRefs/1/name", "value": "web"}]`)
	testenv.Eventually(t, "the backend exists", func() bool {
		return conditions("tcproute") == "sluice.dev/controller Accepted=True/Accepted/2 ResolvedRefs=True/ResolvedRefs/2 "
	}, func() string { return conditions("tcproute") })
	cluster, problems, err := kube.Load(s.Context(), s.writers["n1"].Client, "n1", nil)
	s.must(err)
	for _, kind := range []string{model.TCPRouteKind, model.UDPRouteKind} {
		r := cluster.Routes[model.ObjectName{Kind: kind, Name: model.Name{Namespace: "shop", Name: "web"}}]
		if r == nil || len(r.Parents) != 1 || len(r.Backends) != 2 || r.Backends[0].Weight != 90 || r.Created == 0 {
			t.Errorf("%s: a node reads %+v, %v", kind, r, problems)
		}
	}
	s.writes() // and nothing is forbidden
}
