package realcluster

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func newCluster(t *testing.T, config Config) *Cluster {
	t.Helper()
	config.Log = os.Stderr
	config.Dir = filepath.Join(t.TempDir(), "cluster")
	c, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestPodsRunAndReachAService(t *testing.T) {
	c := newCluster(t, Config{Name: "test-" + "a", Workers: 2})
	out, err := c.Kubectl(t.Context(), "", "get", "pods", "-A", "-o", "wide")
	t.Log(out, err)
}
