package binaries

import (
	"errors"
	"strings"
	"testing"
)

func TestMissingProgramsAreNamedWithTheBuildCommand(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	_, err := Find(Etcd, KubeProxy)
	var missing *Missing
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "no etcd, kube-proxy in ") ||
		!strings.Contains(err.Error(), "host/lab/testcluster/build etcd kube-apiserver kube-controller-manager kubectl kube-proxy`") {
		t.Errorf("got %v", err)
	}
	if _, err := Find(Etcd); err == nil || !strings.Contains(err.Error(), "host/lab/testcluster/build`") {
		t.Errorf("got %v", err)
	}
}
