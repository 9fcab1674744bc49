package cluster

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sluice-proxy/sluice/host/lab/orcaserver"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// local adds an address to this namespace.
func (s *scene) local(address string) {
	s.Helper()
	lo, err := netlink.LinkByName("lo")
	s.must(err)
	addr, err := netlink.ParseAddr(address + "/32")
	s.must(err)
	s.must(netlink.AddrAdd(lo, addr))
}

// load is what is written of a Service's endpoints.
func (s *scene) load(service, want string) {
	s.Helper()
	got := ""
	testenv.Eventually(s, want, func() bool {
		got, _ = s.Kubectl(s.Context(), "", "-n", "shop", "get", "sel", service, "--ignore-not-found", "-o",
			"jsonpath={.metadata.ownerReferences[*].name} {.reporting}/{.silent} {.endpoints} {.message}")
		return strings.TrimSpace(got) == want
	}, func() string { return got + "\n" + s.log.String() })
}

const reporting = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {sluice.dev/load-reports: "8085"}}
spec: {ports: [{port: 80}], selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: forged, namespace: shop, annotations: {sluice.dev/load-reports: "8085"}}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: invalid, namespace: shop, annotations: {sluice.dev/load-reports: "http"}}
spec: {ports: [{port: 80}], selector: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: owned, namespace: shop, annotations: {sluice.dev/load-reports: "8085"}}
spec: {ports: [{port: 80}], selector: {app: web}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: forged-1, namespace: shop, labels: {kubernetes.io/service-name: forged}}
addressType: IPv4
ports: [{port: 80, name: ""}]
endpoints: [{addresses: [10.244.0.6], targetRef: {kind: Pod, name: web-1, namespace: shop, uid: UID}}]
`

// ofAnother is written by another collector, for a Service that is there already.
const ofAnother = `
apiVersion: sluice.dev/v1alpha1
kind: EndpointLoad
metadata: {name: owned, namespace: shop, ownerReferences: [{apiVersion: v1, kind: Service, name: owned, uid: UID}]}
reporting: 7
silent: 0
endpoints: [{address: 10.244.0.5, values: {cpu_utilization: "0.1"}}]
`

// TestLoadThatEndpointsReportIsWritten: of a Service that asks for it, by the leader, with rights of the manifests. An address
// that is not its Pod's is not connected to. The next leader goes on. Nothing is left of a Service that no longer asks, but for
// what another collector has written.
func TestLoadThatEndpointsReportIsWritten(t *testing.T) {
	s := newScene(t)
	s.local("10.244.0.5")
	s.local("10.244.0.6")
	l, _ := orcaserver.Listen(t, "10.244.0.5:8085")
	var open atomic.Int64
	var message atomic.Value // what the server reports: at first, and again when told
	message.Store(append(orcaserver.Number(1, .5), orcaserver.Named(5, "queue", .123)...))
	again := make(chan struct{})
	orcaserver.Serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		orcaserver.Answer(w, message.Load().([]byte))
		for {
			select {
			case <-r.Context().Done():
				return
			case <-again:
				_, _ = w.Write(orcaserver.Frame(message.Load().([]byte)))
				w.(http.Flusher).Flush()
			}
		}
	})
	victim, _ := orcaserver.Listen(t, "10.244.0.6:8085")
	var connected atomic.Int64
	go func() {
		for {
			c, err := victim.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			c.Close()
		}
	}()
	s.must(s.AddPod(t.Context(), testcluster.Pod{Namespace: "shop", Name: "web-1", Labels: map[string]string{"app": "web"}, Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.244.0.5")}, Ready: true}))
	s.kubectl("-n", "shop", "create", "service", "clusterip", "owned", "--tcp=80")
	uid := s.kubectl("-n", "shop", "get", "service", "owned", "-o", "jsonpath={.metadata.uid}")
	_, err := s.Kubectl(t.Context(), strings.Replace(ofAnother, "UID", uid, 1), "apply", "--server-side", "--field-manager=another", "-f", "-")
	s.must(err)
	stop := s.controller("c1")
	s.must(s.Apply(t.Context(), strings.Replace(reporting, "UID", s.kubectl("-n", "shop", "get", "pod", "web-1", "-o", "jsonpath={.metadata.uid}"), 1)))

	s.load("web", `web 1/0 [{"address":"10.244.0.5","values":{"cpu_utilization":"0.5","utilization/queue":"0.12"}}]`)
	s.load("forged", "forged 0/1  10.244.0.6: Pod web-1 has other addresses")
	testenv.Eventually(t, "the conflict is said", func() bool { return strings.Contains(s.log.String(), "object=shop/owned") }, s.log.String)
	message.Store(orcaserver.Number(1, .9))
	again <- struct{}{}
	s.load("web", `web 1/0 [{"address":"10.244.0.5","values":{"cpu_utilization":"0.9"}}]`)

	// The next leader has the values, and writes none that has not changed.
	version := func() string {
		return s.kubectl("-n", "shop", "get", "sel", "web", "-o", "jsonpath={.metadata.resourceVersion}")
	}
	before := version()
	stop()
	testenv.Eventually(t, "no stream without a leader", func() bool { return open.Load() == 0 })
	stop = s.controller("c2")
	testenv.Eventually(t, "a stream of the next leader", func() bool { return open.Load() == 1 }, s.log.String)
	testenv.Always(t, 4*time.Second, "nothing is written again", func() bool { return version() == before }, s.log.String)

	// The endpoint goes, then the annotation.
	s.must(s.RemovePod(t.Context(), "shop", "web-1"))
	s.load("web", "web 0/0")
	testenv.Eventually(t, "no stream without an endpoint", func() bool { return open.Load() == 0 })
	s.kubectl("-n", "shop", "annotate", "service", "web", "forged", "owned", "sluice.dev/load-reports-")
	s.load("web", "")
	s.load("forged", "")
	s.load("owned", `owned 7/0 [{"address":"10.244.0.5","values":{"cpu_utilization":"0.1"}}]`)
	if n := connected.Load(); n != 0 {
		t.Errorf("%d connections to an address that is not the Pod's", n)
	}
	stop()
	if log := s.log.String(); strings.Count(log, "an annotation is not the number of a port") != 2 { // one of each leader
		t.Error(log)
	}
	if n := s.writes(); n != 0 {
		t.Error(fmt.Sprint(n, " statuses are written"))
	}
}
