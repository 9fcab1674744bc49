package programs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
	"github.com/sluice-proxy/sluice/host/lab/buildcache"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

// Suite is where Kubernetes' network tests are, and what they need beside a Set.
type Suite struct {
	Bin    string // folder with ginkgo and e2e.test
	Images string // folder of archives
}

// SuiteVersion is the release of the tests, and of the kube-proxy in SuiteKubeProxy, which the cluster's may be older than.
const (
	SuiteVersion   = "v1.37.2"
	SuiteKubeProxy = Registry + "/kube-proxy:" + SuiteVersion
)

// SuiteRegistries is the file that KUBE_TEST_REPO_LIST names: it leads the tests to images of Suite.
const SuiteRegistries = "promoterE2eRegistry: " + Registry + "/e2e\nbuildImageRegistry: " + Registry + "/build\ngcRegistry: " + Registry + "\n"

func suiteImages() []archive {
	return []archive{
		{"regression", only(fromBuilt, "regression-issue-74839"), []image{{Registry + "/e2e/regression-issue-74839:1.5", "/regression-issue-74839", ""}}},
		{"kube-proxy", kubeProxy(fromBuilt), []image{{SuiteKubeProxy, "", "/usr/local/bin/kube-proxy"}}},
		{"agnhost", agnhostRoot, []image{
			{Registry + "/e2e/agnhost:2.66.1", "/agnhost", "pause"},
			{Registry + "/e2e/glibc-dns-testing:2.1.1", "/agnhost", "pause"},
			{Registry + "/build/distroless-iptables:v0.9.9", "/agnhost", "pause"},
			{Registry + "/e2e/nginx:1.27.0-2", "/agnhost", "test-webserver"}, // those that use it want a server at port 80
		}},
	}
}

// agnhostRoot has what upstream's tests run in agnhost. Busybox's wget crashes with -T in Debian 12.
func agnhostRoot(s sources, r root) error {
	if err := s.shell(r); err != nil {
		return err
	}
	if err := r.programs(s.debian, "bash", "conntrack", "curl", "dig", "getent", "host", "ip", "iperf", "nc.openbsd", "nft", "nslookup", "ss", "wget"); err != nil {
		return err
	}
	r.text("etc/wgetrc", "tries = 1\n") // as busybox's: tests that something does not answer wait for each
	r["uploads/"] = oci.File{Mode: 0o755}
	if err := s.registry(r); err != nil {
		return err
	}
	r.link("usr/bin/nc", "nc.openbsd")
	r.link("usr/local/bin/iperf", "/usr/bin/iperf")
	r.link("agnhost-2", "agnhost")
	for name, folder := range map[string]string{"agnhost": s.built, "coredns": s.Bin} {
		if err := r.copy(name, filepath.Join(folder, name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		if err := r.copy(name, filepath.Join(s.module, "test/images/agnhost/porter", name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// registry adds what agnhost serves as a registry: the image pause:testing.
func (s sources) registry(r root) error {
	temp, err := os.MkdirTemp("", "registry-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	layout := filepath.Join(temp, "layout")
	sums, err := clusterImages()[0].layout(context.Background(), s, layout)
	if err != nil {
		return err
	}
	const at = "var/registry/pause/"
	r.text(at+"manifests/testing", string(sums[0]))
	blobs, err := filepath.Glob(filepath.Join(layout, "blobs", "sha256", "*"))
	for _, path := range blobs {
		sum := filepath.Base(path)
		for _, kind := range []string{"manifests", "blobs"} { // what it is decides which is asked for
			err = errors.Join(err, r.copy(at+kind+"/sha256/"+sum[:2]+"/"+sum+"/data", path, 0o644))
		}
	}
	return err
}

func suite() buildcache.Programs {
	const module = "suite"
	return buildcache.Programs{
		Kind:    "realcluster/suite",
		Source:  sourceDir,
		Modules: []string{module},
		Version: SuiteVersion,
		List: map[string]buildcache.Program{
			"agnhost":                {Module: module, Package: "k8s.io/kubernetes/test/images/agnhost"},
			"regression-issue-74839": {Module: module, Package: "k8s.io/kubernetes/test/images/regression-issue-74839"},
			"ginkgo":                 {Module: module, Package: "github.com/onsi/ginkgo/v2/ginkgo"},
			"e2e.test":               {Module: module, Package: "./e2e", Test: true},
			binaries.KubeProxy:       {Module: module, Package: "k8s.io/kubernetes/cmd/kube-proxy"},
		},
		Command: suiteCommand,
	}
}

func suiteCommand([]string) string {
	return "`go run ./host/lab/realcluster/programs/build suite` (minutes the first time)"
}

// BuildKubeProxy returns the path of kube-proxy of SuiteVersion, and builds it if it is missing.
func BuildKubeProxy(ctx context.Context, w io.Writer) (string, error) {
	dir, err := suite().Build(ctx, w, binaries.KubeProxy)
	return filepath.Join(dir, binaries.KubeProxy), err
}

// suiteDirs returns the directories of a Suite, whether they exist or not.
func suiteDirs() (Suite, error) {
	bin, err := suite().Dir()
	if err != nil {
		return Suite{}, err
	}
	set, err := dirs()
	if err != nil {
		return Suite{}, err
	}
	key := sha256.New()
	fmt.Fprintln(key, bin, set.Bin, set.Debian)
	if err := writeRecipes(key, append(imageRecipes, "suite.go")...); err != nil {
		return Suite{}, err
	}
	images, err := buildcache.Folder("realcluster/suite-images", key)
	return Suite{bin, images}, err
}

// FindSuite returns the suite, or a *Missing error.
func FindSuite() (Suite, error) {
	s, err := suiteDirs()
	if err != nil {
		return Suite{}, err
	}
	s.Images = filepath.Join(s.Images, archives)
	_, errBin := suite().Find(slices.Sorted(maps.Keys(suite().List))...)
	err = together(filepath.Dir(filepath.Dir(s.Bin)), suiteCommand, errBin, stat(s.Images, "images"))
	if err != nil {
		return Suite{}, err
	}
	return s, nil
}

// BuildSuite builds the suite if it is missing, and reports progress on w. It needs the Set.
func BuildSuite(ctx context.Context, w io.Writer) (Suite, error) {
	var missing *Missing
	if s, err := FindSuite(); err == nil || !errors.As(err, &missing) {
		return s, err
	}
	set, err := Find()
	if err != nil {
		return Suite{}, err
	}
	dir, err := suiteDirs()
	if err != nil {
		return Suite{}, err
	}
	if _, err := suite().Build(ctx, w, slices.Sorted(maps.Keys(suite().List))...); err != nil {
		return Suite{}, err
	}
	module, err := moduleDir(ctx, suite(), "k8s.io/kubernetes")
	if err != nil {
		return Suite{}, err
	}
	s := sources{Set: set, debian: debian(set.Debian), built: dir.Bin, module: module}
	dir.Images, err = complete(ctx, w, dir.Images, archives, func(to string) error { return s.write(ctx, w, suiteImages(), to) })
	return dir, err
}

// moduleDir returns the folder of a module that programs are built from.
func moduleDir(ctx context.Context, from buildcache.Programs, module string) (string, error) {
	at, err := from.SourceDir()
	if err != nil {
		return "", err
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir, list.Env = filepath.Join(at, from.Modules[0]), append(os.Environ(), "GOWORK=off")
	dir, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the module %s: %w", module, err)
	}
	return strings.TrimSpace(string(dir)), nil
}
