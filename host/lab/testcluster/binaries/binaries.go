// Package binaries builds the programs of a Kubernetes control plane from the modules etcd and kubernetes next to it. They
// are kept in a directory of the user's cache whose name is a hash of the modules, the compiler and its flags.
package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// kubernetes is the version that the programs of that module report.
const kubernetes = "v1.36.3"

// program is the module and package of a program.
type program struct {
	module string // folder of a module, beside this package's
	pkg    string
}

func programs() map[string]program {
	of := func(name string) program { return program{"kubernetes", "k8s.io/kubernetes/cmd/" + name} }
	return map[string]program{
		Etcd:              {"etcd", "go.etcd.io/etcd/server/v3"},
		APIServer:         of(APIServer),
		ControllerManager: of(ControllerManager),
		Kubectl:           of(Kubectl),
		KubeProxy:         of(KubeProxy),
	}
}

// flags returns the arguments of go build for both modules.
func flags() []string {
	ld := []string{"-s", "-w"}
	minor := strings.Split(strings.TrimPrefix(kubernetes, "v"), ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		ld = append(ld, "-X", pkg+".gitVersion="+kubernetes, "-X", pkg+".gitMajor="+minor[0], "-X", pkg+".gitMinor="+minor[1])
	}
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", strings.Join(ld, " ")}
}

// Missing is the error of Find: programs that have not been built.
type Missing struct {
	Names []string
	Dir   string // where they would be
}

func (m *Missing) Error() string {
	more := ""
	for _, n := range m.Names {
		if n == KubeProxy {
			more = " " + strings.Join(append(Cluster(), KubeProxy), " ")
		}
	}
	return fmt.Sprintf("no %s in %s: run `go run ./host/lab/testcluster/build%s` (minutes the first time, on a quiet machine), or `make test-cluster`",
		strings.Join(m.Names, ", "), m.Dir, more)
}

// Find returns the directory that has all named programs, or a *Missing error.
func Find(names ...string) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	missing := &Missing{Dir: dir}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			missing.Names = append(missing.Names, n)
		}
	}
	if len(missing.Names) > 0 {
		return "", missing
	}
	return dir, nil
}

// cacheRoot returns the directory of all keys.
func cacheRoot() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder: %w", err)
	}
	return filepath.Join(cache, "sluice", "testcluster"), nil
}

// cacheDir returns the directory for the present state of the modules.
func cacheDir() (string, error) {
	top, err := cacheRoot()
	if err != nil {
		return "", err
	}
	src, err := moduleDir()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s/%s %q\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, flags())
	for _, module := range []string{"etcd", "kubernetes"} {
		for _, name := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(src, module, name))
			if err != nil {
				return "", fmt.Errorf("read module %s: %w", module, err)
			}
			fmt.Fprintf(h, "%s/%s %d\n%s", module, name, len(text), text)
		}
	}
	return filepath.Join(top, hex.EncodeToString(h.Sum(nil))[:16]), nil
}

// moduleDir finds host/lab/testcluster from the working directory upwards.
func moduleDir() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		dir := filepath.Join(at, "host", "lab", "testcluster")
		if _, err := os.Stat(filepath.Join(dir, "kubernetes", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", errors.New("host/lab/testcluster not found in the working directory or above: run this in sluice's work tree")
		}
		at = up
	}
}
