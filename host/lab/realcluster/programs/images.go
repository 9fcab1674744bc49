package programs

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// Registry is the registry in the names of images, which does not exist: nodes have the images before they need them.
const Registry = "cluster.invalid"

// Images that manifests name.
const (
	Pause     = Registry + "/pause:3.10.2"
	CoreDNS   = Registry + "/coredns:v1.14.2"
	KubeProxy = Registry + "/kube-proxy:" + Kubernetes
	Load      = Registry + "/load:1" // host/lab/realcluster/load
	Busybox   = Registry + "/e2e/busybox:1.37.0-2"
)

type image struct {
	name            string
	entrypoint, cmd string
}

// archive is a root that several images share.
type archive struct {
	name   string
	fill   func(s sources, r root) error
	images []image
}

func clusterImages() []archive {
	return []archive{
		{"pause", only(fromBin, "pause"), []image{{Pause, "/pause", ""}}},
		{"coredns", only(fromBin, "coredns"), []image{{CoreDNS, "/coredns", ""}}},
		{"load", only(func(s sources) string { return filepath.Dir(s.Load) }, load), []image{{Load, "/load", ""}}},
		{"kube-proxy", kubeProxy(func(s sources) string { return s.control }), []image{{KubeProxy, "", "/usr/local/bin/kube-proxy"}}},
		{"busybox", sources.shell, []image{{Busybox, "", "sh"}}},
	}
}

// sources are what images are made from.
type sources struct {
	Set
	control string // folder of the control plane's programs
	debian  debian
	built   string // folder of the programs of the suite or of a network plugin
	module  string // folder of the module that they are from
}

func fromBin(s sources) string   { return s.Bin }
func fromBuilt(s sources) string { return s.built }

// only is a root with nothing but one program.
func only(folder func(sources) string, name string) func(sources, root) error {
	return func(s sources, r root) error { return r.copy(name, filepath.Join(folder(s), name), 0o755) }
}

// shell is a root with busybox and what every container expects.
func (s sources) shell(r root) error {
	for _, dir := range []string{"bin", "sbin", "lib"} {
		r.link(dir, "usr/"+strings.TrimPrefix(dir, "s"))
	}
	r.link("usr/sbin", "bin")
	for name, mode := range map[string]int64{"tmp/": 0o1777, "var/tmp/": 0o1777, "root/": 0o700} {
		r[name] = oci.File{Mode: mode}
	}
	r.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
	r.text("etc/group", "root:x:0:\n")
	r.text("etc/nsswitch.conf", "hosts: files dns\n")
	for _, name := range []string{"etc/protocols", "etc/services"} { // nft prints names of protocols only with the first
		if err := r.copy(name, filepath.Join(string(s.debian), name), 0o644); err != nil {
			return err
		}
	}
	applets, err := exec.Command(filepath.Join(string(s.debian), "usr/bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("list the applets of busybox: %w", err)
	}
	for _, name := range strings.Fields(string(applets)) {
		r.link("usr/bin/"+name, "busybox")
	}
	// A shell of its own, since busybox's prefers its applets to programs in $PATH.
	r.link("usr/bin/sh", "dash")
	return r.programs(s.debian, "busybox", "dash")
}

func kubeProxy(folder func(sources) string) func(sources, root) error {
	return func(s sources, r root) error {
		if err := s.shell(r); err != nil {
			return err
		}
		if err := r.programs(s.debian, "conntrack", "ipset", "nft"); err != nil {
			return err
		}
		if err := r.iptables(s.debian); err != nil {
			return err
		}
		return r.copy("usr/local/bin/kube-proxy", filepath.Join(folder(s), binaries.KubeProxy), 0o755)
	}
}

// write writes archives into a folder.
func (s sources) write(ctx context.Context, w io.Writer, all []archive, to string) error {
	for _, a := range all {
		fmt.Fprintf(w, "packing image %s\n", a.name)
		if err := a.write(ctx, s, to); err != nil {
			return fmt.Errorf("image %s: %w", a.name, err)
		}
	}
	return nil
}

func (a archive) write(ctx context.Context, s sources, to string) error {
	dir := filepath.Join(to, a.name)
	defer os.RemoveAll(dir)
	if _, err := a.layout(ctx, s, dir); err != nil {
		return err
	}
	return oci.Archive(dir, dir+".tar", time.Time{})
}

// layout writes the images as an OCI image layout and returns their digests.
func (a archive) layout(ctx context.Context, s sources, dir string) ([]digest.Digest, error) {
	r := root{}
	if err := a.fill(s, r); err != nil {
		return nil, err
	}
	// Every node unpacks it: not compressed.
	layout := oci.Layout{Level: gzip.NoCompression, CreatedBy: sourceDir}
	for _, i := range a.images {
		layout.Indexes = append(layout.Indexes, oci.Index{
			Names: []map[string]string{{"io.containerd.image.name": i.name}},
			Images: []oci.Image{{
				Platform: v1.Platform{OS: "linux", Architecture: runtime.GOARCH},
				Config: v1.ImageConfig{Entrypoint: strings.Fields(i.entrypoint), Cmd: strings.Fields(i.cmd), WorkingDir: "/",
					Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
				Files: r.files(),
			}},
		})
	}
	return layout.Write(ctx, dir)
}
