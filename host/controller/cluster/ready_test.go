package cluster

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// probe asks a controller as the kubelet does, and returns the answer's status code and text.
func (s *scene) probe(identity, path string) string {
	s.Helper()
	resp, err := http.Get(s.health[identity] + path)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	s.must(err)
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", string(text)))
}

func (s *scene) answers(identity, path, want string) {
	s.Helper()
	testenv.Eventually(s, identity+path+": "+want, func() bool { return s.probe(identity, path) == want }, func() string { return s.probe(identity, path) + "\n" + s.log.String() })
}

// TestReadyIsWhoCouldLead: the leader and the others, once they have read the objects and the Lease, and while the API server is
// away too.
func TestReadyIsWhoCouldLead(t *testing.T) {
	s := newScene(t)
	s.kubectl("-n", namespace, "delete", "clusterrolebinding/sluice-controller", "rolebinding/sluice-controller")
	defer s.controller("c1")()
	s.answers("c1", "/livez", "200")
	s.answers("c1", "/readyz", "503 not read from the API server yet: clusterservicepolicies, nodereports, nodes, serviceplugins, servicepolicies, services")
	account := "--serviceaccount=" + namespace + ":sluice-controller"
	s.kubectl("create", "clusterrolebinding", "sluice-controller", "--clusterrole=sluice-controller", account)
	s.answers("c1", "/readyz", "503 the Lease sluice-controller has been neither read nor taken yet")
	s.kubectl("-n", namespace, "create", "rolebinding", "sluice-controller", "--role=sluice-controller", account)
	s.answers("c1", "/readyz", "200")
	testenv.Eventually(t, "c1 leads", func() bool { return strings.Contains(s.log.String(), "identity=c1") }, s.log.String)
	defer s.controller("c2")()
	s.answers("c2", "/readyz", "200")
	if strings.Contains(s.log.String(), "identity=c2") {
		t.Errorf("c2 leads:\n%s", s.log.String())
	}
	s.StopAPIServer()
	testenv.Always(t, 2*time.Second, "ready without an API server", func() bool { return s.probe("c1", "/readyz")+s.probe("c2", "/readyz") == "200200" }, s.log.String)
}
