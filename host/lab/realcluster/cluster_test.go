package realcluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

func TestMain(m *testing.M) {
	Enter()
	if os.Getenv("SLUICE_TEST_REALCLUSTER") == "" {
		os.Exit(m.Run()) // only what needs no cluster
	}
	Main(m)
}

// newCluster starts a cluster that is closed when the test ends.
func newCluster(t *testing.T, config Config) *Cluster {
	t.Helper()
	if os.Getenv("SLUICE_TEST_REALCLUSTER") == "" {
		t.Skip("starts a cluster: make test-realcluster")
	}
	config.Log, config.Dir = t.Output(), filepath.Join(t.TempDir(), "cluster")
	c, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// web is a Deployment of two Pods and its Service, whose answers are the Pods' names.
const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "` + programs.Registry + `/e2e/agnhost:2.63.0", args: [serve-hostname, --http, --port=8080], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
`

func TestPodsReachAServiceByItsName(t *testing.T) {
	webAnswers(t, newCluster(t, Config{Name: "test", Workers: 2}))
}

// webAnswers starts web and asks it from one of its Pods.
func webAnswers(t *testing.T, c *Cluster) {
	t.Helper()
	if err := c.Apply(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if err := c.Rollout(t.Context(), "default", "deployment/web"); err != nil {
		t.Fatal(err)
	}
	out, err := c.Kubectl(t.Context(), "", "exec", "deployment/web", "--", "wget", "-qO-", "-T5", "http://web.default.svc.cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 5 || out[:4] != "web-" {
		t.Errorf("answer %q, want the name of a Pod", out)
	}
}
