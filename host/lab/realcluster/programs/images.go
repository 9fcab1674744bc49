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
	Agnhost   = Registry + "/e2e/agnhost:2.63.0"
	Load      = Registry + "/load:1" // host/lab/realcluster/load
	Busybox   = Registry + "/e2e/busybox:1.37.0-1"
)

// image is an image that Kubernetes or its tests name. The tests' own names are mapped to the registry with KUBE_TEST_REPO_LIST.
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

func imageArchives() []archive {
	return []archive{
		{"pause", only("pause"), []image{{Pause, "/pause", ""}}},
		{"coredns", only("coredns"), []image{{CoreDNS, "/coredns", ""}}},
		{"load", func(s sources, r root) error { return r.copy(load, s.load, 0o755) }, []image{{Load, "/load", ""}}},
		{"regression", only("regression-issue-74839"), []image{{Registry + "/e2e/regression-issue-74839:1.4", "/regression-issue-74839", ""}}},
		{"kube-proxy", kubeProxyRoot, []image{{KubeProxy, "", "/usr/local/bin/kube-proxy"}}},
		{"busybox", sources.shell, []image{{Busybox, "", "sh"}}},
		{"agnhost", agnhostRoot, []image{
			{Agnhost, "/agnhost", "pause"},
			{Registry + "/e2e/glibc-dns-testing:2.0.0", "/agnhost", "pause"},
			{Registry + "/build/distroless-iptables:v0.9.6", "/agnhost", "pause"},
			{Registry + "/e2e/nginx:1.15-4", "/agnhost", "test-webserver"}, // those that use it want a server at port 80
		}},
	}
}

// sources are what images are made from.
type sources struct {
	bin, control string
	load         string
	debian       debian
	kubernetes   string // the folder of the module
}

// only is a root with nothing but one of the programs.
func only(name string) func(sources, root) error {
	return func(s sources, r root) error { return r.copy(name, filepath.Join(s.bin, name), 0o755) }
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

// agnhostRoot has what upstream's tests run in agnhost. Busybox's wget crashes with -T in Debian 12.
func agnhostRoot(s sources, r root) error {
	if err := s.shell(r); err != nil {
		return err
	}
	if err := r.programs(s.debian, "bash", "conntrack", "curl", "dig", "getent", "host", "ip", "iperf", "nc.openbsd", "nft", "nslookup", "ss", "wget"); err != nil {
		return err
	}
	r["uploads/"] = oci.File{Mode: 0o755}
	r.link("usr/bin/nc", "nc.openbsd")
	r.link("usr/local/bin/iperf", "/usr/bin/iperf")
	r.link("agnhost-2", "agnhost")
	for _, name := range []string{"agnhost", "coredns"} {
		if err := only(name)(s, r); err != nil {
			return err
		}
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		if err := r.copy(name, filepath.Join(s.kubernetes, "test/images/agnhost/porter", name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func kubeProxyRoot(s sources, r root) error {
	if err := s.shell(r); err != nil {
		return err
	}
	if err := r.programs(s.debian, "conntrack", "nft"); err != nil {
		return err
	}
	return r.copy("usr/local/bin/kube-proxy", filepath.Join(s.control, binaries.KubeProxy), 0o755)
}

// writeImages writes all archives.
func writeImages(ctx context.Context, w io.Writer, set Set, control, to string) error {
	at, err := source().SourceDir()
	if err != nil {
		return err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	list.Dir, list.Env = filepath.Join(at, kubernetes), append(os.Environ(), "GOWORK=off")
	dir, err := list.Output()
	if err != nil {
		return fmt.Errorf("find the module k8s.io/kubernetes: %w", err)
	}
	s := sources{set.Bin, control, set.Load, debian(set.Debian), strings.TrimSpace(string(dir))}
	for _, a := range imageArchives() {
		fmt.Fprintf(w, "packing image %s\n", a.name)
		if err := a.write(ctx, s, to); err != nil {
			return fmt.Errorf("image %s: %w", a.name, err)
		}
	}
	return nil
}

func (a archive) write(ctx context.Context, s sources, to string) error {
	r := root{}
	if err := a.fill(s, r); err != nil {
		return err
	}
	// Every node unpacks it: not compressed.
	layout := oci.Layout{Level: gzip.NoCompression, CreatedBy: "host/lab/realcluster/programs"}
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
	dir := filepath.Join(to, a.name)
	defer os.RemoveAll(dir)
	if _, err := layout.Write(ctx, dir); err != nil {
		return err
	}
	return oci.Archive(dir, dir+".tar", layout.Created)
}
