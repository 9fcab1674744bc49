// Package binaries builds the programs of a Kubernetes control plane from the modules etcd and kubernetes next to it.
package binaries

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/lab/buildcache"
)

// The programs that can be built.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Kubectl           = "kubectl"
	KubeProxy         = "kube-proxy"
)

// Cluster returns the programs that a cluster needs.
func Cluster() []string { return []string{Etcd, APIServer, ControllerManager, Kubectl} }

// Kubernetes is the version that the programs of that module report.
const Kubernetes = "v1.36.3"

// Missing is the error of Find: programs that have not been built.
type Missing = buildcache.Missing

func programs() buildcache.Programs {
	of := func(name string) buildcache.Program {
		return buildcache.Program{Module: "kubernetes", Package: "k8s.io/kubernetes/cmd/" + name}
	}
	return buildcache.Programs{
		Kind:    "testcluster",
		Source:  "host/lab/testcluster",
		Modules: []string{"etcd", "kubernetes"},
		Version: Kubernetes,
		List: map[string]buildcache.Program{
			Etcd:              {Module: "etcd", Package: "go.etcd.io/etcd/server/v3"},
			APIServer:         of(APIServer),
			ControllerManager: of(ControllerManager),
			Kubectl:           of(Kubectl),
			KubeProxy:         of(KubeProxy),
		},
		Command: command,
	}
}

func command(missing []string) string {
	args := ""
	if slices.Contains(missing, KubeProxy) {
		args = " " + strings.Join(append(Cluster(), KubeProxy), " ")
	}
	return "`go run ./host/lab/testcluster/build" + args + "` (minutes the first time, on a quiet machine), or `make test-cluster`"
}

// Find returns the directory that has all named programs, or a *Missing error.
func Find(names ...string) (string, error) { return programs().Find(names...) }

// Dir returns the directory for the present state of the modules, whether it exists or not.
func Dir() (string, error) { return programs().Dir() }

// Build builds the named programs that are missing, reports progress on w, and returns their directory.
func Build(ctx context.Context, w io.Writer, names ...string) (string, error) {
	return programs().Build(ctx, w, names...)
}
