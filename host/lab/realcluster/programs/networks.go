package programs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
	"github.com/sluice-proxy/sluice/host/lab/buildcache"
)

// Network is a network plugin of a cluster: what its DaemonSet needs.
type Network struct {
	Images               string // folder of archives
	Objects              string // what its release has for `kubectl apply`, with the settings that it needs here
	Namespace, DaemonSet string
	Program              string // that the DaemonSet runs
	Policies             bool   // it enforces network policies
	Routed               bool   // Pods' addresses are the network's: it leads to the node that has their range
}

// network is how a Network is made: of a module's programs and its release's manifest.
type network struct {
	Network
	module   string
	list     map[string]buildcache.Program
	images   []archive
	manifest string   // in the module
	settings []string // old, new, …: each is in the manifest
}

// Networks are the names of the network plugins.
func Networks() []string { return slices.Sorted(maps.Keys(networks())) }

func networks() map[string]network {
	const flannel, kubeRouter, calico = "github.com/flannel-io/flannel", "github.com/cloudnativelabs/kube-router/v2", "github.com/projectcalico/calico"
	of := func(name, pkg string) buildcache.Program {
		return buildcache.Program{Module: "networks/" + name, Package: pkg}
	}
	return map[string]network{
		"flannel": {
			Network: Network{Namespace: "kube-flannel", DaemonSet: "kube-flannel-ds", Program: "flanneld"}, module: flannel,
			list: map[string]buildcache.Program{
				"flanneld":     {Module: "networks/flannel", Package: flannel, Cgo: true}, // for its backend udp
				"install-conf": of("flannel", flannel+"/cmd/install_conf"),
				"flannel":      of("flannel-cni", "github.com/containernetworking/plugins/plugins/meta/flannel"),
			},
			images: []archive{{"flannel", flannelRoot, []image{
				{"ghcr.io/flannel-io/flannel:v0.28.10", "", "/opt/bin/flanneld"}, {"ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel3", "", ""},
			}}},
			manifest: "Documentation/kube-flannel.yml",
			settings: []string{`"cniVersion": "1.0.0"`, `"cniVersion": "0.3.1"`}, // which this release of the CNI plugin knows
		},
		"kube-router": {
			Network: Network{Namespace: "kube-system", DaemonSet: "kube-router", Program: "kube-router", Policies: true, Routed: true}, module: kubeRouter,
			list:     map[string]buildcache.Program{"kube-router": of("kube-router", kubeRouter+"/cmd/kube-router")},
			images:   []archive{{"kube-router", kubeRouterRoot, []image{{"docker.io/cloudnativelabs/kube-router:latest", "/usr/local/bin/kube-router", ""}}}},
			manifest: "daemonset/kubeadm-kuberouter-all-features-hostport.yaml",
			settings: []string{
				"imagePullPolicy: Always", "imagePullPolicy: IfNotPresent",
				"- --run-service-proxy=true", "- --run-service-proxy=false",
				// kube-router's tunnels need the module ipip.
				"- --run-router=true", "- --run-router=true\n        - --enable-overlay=false",
			},
		},
		"calico": {
			Network: Network{Namespace: "kube-system", DaemonSet: "calico-node", Program: "calico-node", Policies: true}, module: calico,
			list: map[string]buildcache.Program{
				"calico-node":      of("calico", calico+"/node/cmd/calico-node"),
				"calico":           of("calico", calico+"/cni-plugin/cmd/calico"),
				"install":          of("calico", calico+"/cni-plugin/cmd/install"),
				"kube-controllers": of("calico", calico+"/kube-controllers/cmd/kube-controllers"),
				"check-status":     of("calico", calico+"/kube-controllers/cmd/check-status"),
			},
			images: []archive{
				{"node", calicoRoot, []image{{"docker.io/calico/node:v3.28.5", "", "/usr/sbin/start_runit"}}},
				{"cni", calicoCNIRoot, []image{{"docker.io/calico/cni:v3.28.5", "", ""}}},
				{"kube-controllers", calicoControllersRoot, []image{{"docker.io/calico/kube-controllers:v3.28.5", "/usr/bin/kube-controllers", ""}}},
			},
			manifest: "manifests/calico-vxlan.yaml",
			settings: []string{
				"            - name: CALICO_IPV4POOL_IPIP\n", "            - {name: CALICO_IPV4POOL_CIDR, value: 10.244.0.0/16}\n            - name: CALICO_IPV4POOL_IPIP\n",
			},
		},
	}
}

// networkTools is a root with what network plugins run.
func (s sources) networkTools(r root) error {
	return errors.Join(s.shell(r), r.programs(s.debian, "conntrack", "ip", "ipset", "nft"), r.iptables(s.debian))
}

func flannelRoot(s sources, r root) error {
	return errors.Join(s.networkTools(r), r.loaded(s.debian, "opt/bin/flanneld", filepath.Join(s.built, "flanneld")),
		r.copy("opt/bin/install-conf", filepath.Join(s.built, "install-conf"), 0o755), r.copy("flannel", filepath.Join(s.built, "flannel"), 0o755))
}

func kubeRouterRoot(s sources, r root) error {
	return errors.Join(s.networkTools(r), r.copy("usr/local/bin/kube-router", filepath.Join(s.built, "kube-router"), 0o755))
}

// calicoRoot has Calico's own services, which runit runs.
func calicoRoot(s sources, r root) error {
	own := filepath.Join(s.module, "node/filesystem")
	return errors.Join(s.networkTools(r), r.programs(s.debian, "chpst", "runsv", "runsvdir", "svlogd"),
		r.tree("etc", filepath.Join(own, "etc")), r.tree("usr/bin", filepath.Join(own, "sbin")), r.copy("usr/bin/calico-node", filepath.Join(s.built, "calico-node"), 0o755))
}

func calicoCNIRoot(s sources, r root) error {
	r["tmp/"] = oci.File{Mode: 0o1777}
	return errors.Join(r.copy("opt/cni/bin/calico", filepath.Join(s.built, "calico"), 0o755), r.copy("opt/cni/bin/calico-ipam", filepath.Join(s.built, "calico"), 0o755),
		r.copy("opt/cni/bin/install", filepath.Join(s.built, "install"), 0o755))
}

func calicoControllersRoot(s sources, r root) error {
	r["tmp/"] = oci.File{Mode: 0o1777}
	return errors.Join(r.copy("usr/bin/kube-controllers", filepath.Join(s.built, "kube-controllers"), 0o755),
		r.copy("usr/bin/check-status", filepath.Join(s.built, "check-status"), 0o755))
}

// programs are what the images are made of. The key of one plugin does not depend on the others.
func (n network) programs(name string) buildcache.Programs {
	p := buildcache.Programs{Kind: "realcluster/network-" + name, Source: sourceDir, Version: Kubernetes, List: n.list, Command: command}
	for _, program := range n.list {
		p.Modules = append(p.Modules, program.Module)
	}
	slices.Sort(p.Modules)
	p.Modules = slices.Compact(p.Modules)
	return p
}

// BuildNetwork builds a network plugin if it is missing, and reports progress on w. It needs the Set.
func BuildNetwork(ctx context.Context, w io.Writer, name string) (Network, error) {
	n, ok := networks()[name]
	if !ok {
		return Network{}, fmt.Errorf("network %s: unknown; there are %s", name, strings.Join(Networks(), ", "))
	}
	set, err := Find()
	if err != nil {
		return Network{}, err
	}
	built, err := n.programs(name).Build(ctx, w, slices.Sorted(maps.Keys(n.list))...)
	if err != nil {
		return Network{}, err
	}
	key := sha256.New()
	fmt.Fprintln(key, built, set.Debian)
	if err := writeRecipes(key, append(imageRecipes, "networks.go")...); err != nil {
		return Network{}, err
	}
	dir, err := buildcache.Folder("realcluster/network-images", key)
	if err != nil {
		return Network{}, err
	}
	s := sources{Set: set, debian: debian(set.Debian), built: built}
	n.Images, err = complete(ctx, w, dir, archives, func(to string) error {
		if s.module, err = moduleDir(ctx, n.programs(name), n.module); err != nil {
			return err
		}
		return errors.Join(n.writeObjects(s.module, to), s.write(ctx, w, n.images, to))
	})
	if err != nil {
		return Network{}, err
	}
	objects, err := os.ReadFile(filepath.Join(n.Images, objectsFile))
	n.Objects = string(objects)
	return n.Network, err
}

const objectsFile = "objects.yaml"

// writeObjects writes the release's manifest with the settings.
func (n network) writeObjects(module, to string) error {
	text, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(n.manifest)))
	if err != nil {
		return err
	}
	for i := 0; i < len(n.settings); i += 2 {
		if !strings.Contains(string(text), n.settings[i]) {
			return fmt.Errorf("%s of %s: no %q", n.manifest, n.module, n.settings[i])
		}
	}
	return os.WriteFile(filepath.Join(to, objectsFile), []byte(strings.NewReplacer(n.settings...).Replace(string(text))), 0o644)
}
