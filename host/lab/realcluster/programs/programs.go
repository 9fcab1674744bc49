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
	"maps"
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

func controlPlane() []string { return append(binaries.Cluster(), binaries.KubeProxy) }

func source() buildcache.Programs {
	const kubernetes, coredns = "kubernetes", "coredns"
	return buildcache.Programs{
		Kind:    "realcluster/bin",
		Source:  sourceDir,
		Modules: []string{kubernetes, coredns},
		Version: Kubernetes,
		List: map[string]buildcache.Program{
			"kubelet":        {Module: kubernetes, Package: "k8s.io/kubernetes/cmd/kubelet"},
			"kube-scheduler": {Module: kubernetes, Package: "k8s.io/kubernetes/cmd/kube-scheduler"},
			"pause":          {Module: kubernetes, Package: "./pause"},
			"coredns":        {Module: coredns, Package: "."},
		},
		Command: command,
	}
}

const sourceDir = "host/lab/realcluster/programs"

const load = "load"

// own are programs of sluice's own module. They are few and small, so the others' key does not depend on them.
func own() buildcache.Programs {
	const dir = "lab/realcluster/load"
	return buildcache.Programs{
		Kind:    "realcluster/own",
		Source:  "host",
		Modules: []string{dir, "util/stats"}, // what it imports
		Version: Kubernetes,
		List:    map[string]buildcache.Program{load: {Module: dir, Package: "./run"}},
		Command: command,
	}
}

func command([]string) string { return "`make node-programs` (minutes the first time)" }

// recipes are part of the keys of what is not built from modules.
//
//go:embed debian.go images.go networks.go root.go suite.go
var recipes embed.FS

var imageRecipes = []string{"images.go", "root.go"}

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
	if err := writeRecipes(key, imageRecipes...); err != nil {
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

// Find returns what a cluster needs, or a *Missing error.
func Find() (Set, error) {
	set, err := dirs()
	if err != nil {
		return Set{}, err
	}
	set.Debian, set.Images = filepath.Join(set.Debian, packages), filepath.Join(set.Images, archives)
	_, errControl := binaries.Find(controlPlane()...)
	_, errNodes := source().Find(slices.Sorted(maps.Keys(source().List))...)
	_, errOwn := own().Find(load)
	err = together(filepath.Dir(filepath.Dir(set.Bin)), command, errControl, errNodes, errOwn, stat(set.Debian, "packages"), stat(set.Images, "images"))
	if err != nil {
		return Set{}, err
	}
	return set, nil
}

// stat returns a *Missing error unless there is a file.
func stat(path, name string) error {
	if _, err := os.Stat(path); err != nil {
		return &Missing{Names: []string{name}}
	}
	return nil
}

// together makes several *Missing errors one. Another error is returned alone.
func together(dir string, command func([]string) string, errs ...error) error {
	all := &Missing{Dir: dir}
	for _, err := range errs {
		var missing *Missing
		if errors.As(err, &missing) {
			all.Names = append(all.Names, missing.Names...)
		} else if err != nil {
			return err
		}
	}
	if len(all.Names) == 0 {
		return nil
	}
	all.Build = command(all.Names)
	return all
}

// Build builds what a cluster needs and is missing, its control plane's programs included, and reports progress on w.
func Build(ctx context.Context, w io.Writer) (Set, error) {
	var missing *Missing
	if set, err := Find(); err == nil || !errors.As(err, &missing) {
		return set, err
	}
	set, err := dirs()
	if err != nil {
		return Set{}, err
	}
	control, err := binaries.Build(ctx, w, controlPlane()...)
	if err != nil {
		return Set{}, err
	}
	if _, err := source().Build(ctx, w, slices.Sorted(maps.Keys(source().List))...); err != nil {
		return Set{}, err
	}
	if _, err := own().Build(ctx, w, load); err != nil {
		return Set{}, err
	}
	set.Debian, err = complete(ctx, w, set.Debian, packages, func(to string) error { return extract(ctx, w, to) })
	if err != nil {
		return Set{}, err
	}
	s := sources{Set: set, control: control, debian: debian(set.Debian)}
	set.Images, err = complete(ctx, w, set.Images, archives, func(to string) error { return s.write(ctx, w, clusterImages(), to) })
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
