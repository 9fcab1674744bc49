// Package programs builds what the nodes of a real cluster need beside the control plane's programs: the kubelet and others from
// Go modules next to this package, containerd and others from Debian's packages, which are not installed, and the images. All is
// kept in the user's cache.
package programs

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-proxy/sluice/host/lab/buildcache"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// Kubernetes is the version of all its programs.
const Kubernetes = binaries.Kubernetes

// Set is where the programs are.
type Set struct {
	Bin    string // folder with kubelet, kube-scheduler and those of the suite
	Debian string // root of the extracted packages: usr/bin/containerd, usr/lib/cni. Its programs use the machine's libraries
	Images string // folder of archives that `ctr images import` takes
	Load   string // the program of host/lab/realcluster/load
}

// Missing is the error of Find: what has not been built.
type Missing = buildcache.Missing

// Find returns what a cluster needs, or a *Missing error.
func Find() (Set, error) { return find(cluster()) }

// FindSuite is Find, for a cluster that Kubernetes' network tests run in: ginkgo and e2e.test are there too.
func FindSuite() (Set, error) { return find(slices.Concat(cluster(), suite())) }

// Build builds what a cluster needs and is missing, those programs of the control plane included, and reports progress on w.
func Build(ctx context.Context, w io.Writer) (Set, error) { return build(ctx, w, cluster()) }

// BuildSuite is Build with Kubernetes' network tests.
func BuildSuite(ctx context.Context, w io.Writer) (Set, error) {
	return build(ctx, w, slices.Concat(cluster(), suite()))
}

func cluster() []string {
	return []string{"kubelet", "kube-scheduler", "coredns", "pause", "agnhost", "regression-issue-74839"}
}

func suite() []string { return []string{"ginkgo", "e2e.test"} }

func controlPlane() []string { return append(binaries.Cluster(), binaries.KubeProxy) }

const kubernetes = "kubernetes"

func source() buildcache.Programs {
	of := func(pkg string) buildcache.Program { return buildcache.Program{Module: kubernetes, Package: pkg} }
	return buildcache.Programs{
		Kind:    "realcluster/bin",
		Source:  "host/lab/realcluster/programs",
		Modules: []string{kubernetes, "coredns"},
		Version: Kubernetes,
		List: map[string]buildcache.Program{
			"kubelet":                of("k8s.io/kubernetes/cmd/kubelet"),
			"kube-scheduler":         of("k8s.io/kubernetes/cmd/kube-scheduler"),
			"agnhost":                of("k8s.io/kubernetes/test/images/agnhost"),
			"regression-issue-74839": of("k8s.io/kubernetes/test/images/regression-issue-74839"),
			"pause":                  of("./pause"),
			"ginkgo":                 of("github.com/onsi/ginkgo/v2/ginkgo"),
			"e2e.test":               {Module: kubernetes, Package: "./e2e", Test: true},
			"coredns":                {Module: "coredns", Package: "."},
		},
		Command: command,
	}
}

const load = "load"

// own are programs of sluice's own module. They are few and small, so the others' key does not depend on them.
func own() buildcache.Programs {
	const dir = "lab/realcluster/load"
	return buildcache.Programs{
		Kind:    "realcluster/own",
		Source:  "host",
		Modules: []string{dir, "stats"}, // what it imports
		Version: Kubernetes,
		List:    map[string]buildcache.Program{load: {Module: dir, Package: "./run"}},
		Command: command,
	}
}

func command(missing []string) string {
	suffix := ""
	if slices.ContainsFunc(missing, func(n string) bool { return slices.Contains(suite(), n) }) {
		suffix = " suite"
	}
	return "`go run ./host/lab/realcluster/programs/build" + suffix + "` (minutes the first time)"
}

// recipes are part of the keys of what is not built from modules.
//
//go:embed debian.go images.go root.go
var recipes embed.FS

// dirs returns the directories of a Set, whether they exist or not.
func dirs() (Set, error) {
	bin, err := source().Dir()
	if err != nil {
		return Set{}, err
	}
	control, err := binaries.Dir()
	if err != nil {
		return Set{}, err
	}
	mine, err := own().Dir()
	if err != nil {
		return Set{}, err
	}
	key := sha256.New()
	release, err := os.ReadFile("/etc/debian_version")
	if err != nil {
		return Set{}, fmt.Errorf("the nodes of a real cluster need packages of Debian: %w", err)
	}
	key.Write(release)
	if err := writeRecipes(key, "debian.go"); err != nil {
		return Set{}, err
	}
	debian, err := buildcache.Folder("realcluster/debian", key)
	if err != nil {
		return Set{}, err
	}
	fmt.Fprintln(key, bin, control, mine)
	if err := writeRecipes(key, "images.go", "root.go"); err != nil {
		return Set{}, err
	}
	images, err := buildcache.Folder("realcluster/images", key)
	return Set{Bin: bin, Debian: debian, Images: images, Load: filepath.Join(mine, load)}, err
}

func writeRecipes(w io.Writer, names ...string) error {
	for _, n := range names {
		text, err := recipes.ReadFile(n)
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// done is the name of what is in a directory when it is complete.
const (
	packages = "root"
	archives = "archives"
)

func find(names []string) (Set, error) {
	set, err := dirs()
	if err != nil {
		return Set{}, err
	}
	missing := &Missing{Dir: filepath.Dir(filepath.Dir(set.Bin))}
	var lacks *Missing
	_, errControl := binaries.Find(controlPlane()...)
	_, errNodes := source().Find(names...)
	_, errOwn := own().Find(load)
	for _, err := range []error{errControl, errNodes, errOwn} {
		if errors.As(err, &lacks) {
			missing.Names = append(missing.Names, lacks.Names...)
		} else if err != nil {
			return Set{}, err
		}
	}
	set.Debian, set.Images = filepath.Join(set.Debian, packages), filepath.Join(set.Images, archives)
	for path, name := range map[string]string{set.Debian: "packages", set.Images: "images"} {
		if _, err := os.Stat(path); err != nil {
			missing.Names = append(missing.Names, name)
		}
	}
	if len(missing.Names) > 0 {
		slices.Sort(missing.Names)
		missing.Build = command(missing.Names)
		return Set{}, missing
	}
	return set, nil
}

func build(ctx context.Context, w io.Writer, names []string) (Set, error) {
	if set, err := find(names); err == nil {
		return set, nil
	} else if missing := (*Missing)(nil); !errors.As(err, &missing) {
		return Set{}, err
	}
	set, err := dirs()
	if err != nil {
		return Set{}, err
	}
	control, err := binaries.Build(ctx, w, controlPlane()...)
	if err != nil {
		return Set{}, err
	}
	if _, err := source().Build(ctx, w, names...); err != nil {
		return Set{}, err
	}
	if _, err := own().Build(ctx, w, load); err != nil {
		return Set{}, err
	}
	set.Debian, err = complete(ctx, w, set.Debian, packages, func(to string) error { return extract(ctx, w, to) })
	if err != nil {
		return Set{}, err
	}
	set.Images, err = complete(ctx, w, set.Images, archives, func(to string) error { return writeImages(ctx, w, set, control, to) })
	return set, err
}

// complete makes the folder name in a directory of the cache, unless it is there.
func complete(ctx context.Context, w io.Writer, dir, name string, fill func(to string) error) (string, error) {
	done, err := buildcache.Open(ctx, w, dir)
	if err != nil {
		return "", err
	}
	defer done()
	to := filepath.Join(dir, name)
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	part := to + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if err := os.Mkdir(part, 0o755); err != nil {
		return "", err
	}
	if err := fill(part); err != nil {
		return "", err
	}
	return to, os.Rename(part, to)
}
