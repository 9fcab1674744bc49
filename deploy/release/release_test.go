package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/lab/helm"
	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// vulnerabilities writes a database of govulncheck, and returns its URL. entry is "" or the one entry, about the standard
// library.
func vulnerabilities(t *testing.T, entry string) string {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "index", "db.json"), `{"modified": "2026-01-01T00:00:00Z"}`)
	modules, vulns := "[]", "[]"
	if entry != "" {
		modules = `[{"path": "stdlib", "vulns": [{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z"}]}]`
		vulns = `[{"id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z", "aliases": []}]`
		writeFile(t, filepath.Join(dir, "ID", "GO-2026-0001.json"), entry)
	}
	writeFile(t, filepath.Join(dir, "index", "modules.json"), modules)
	writeFile(t, filepath.Join(dir, "index", "vulns.json"), vulns)
	return "file://" + dir
}

func command(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := command(t, dir, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// compiled returns the sums of the machine code of plugins in the image for a platform, and checks that each plugin has some.
func compiled(t *testing.T, layout oras.ReadOnlyTarget, index v1.Descriptor, arch string) map[string]bool {
	t.Helper()
	options := oras.FetchBytesOptions{FetchOptions: oras.FetchOptions{ResolveOptions: oras.ResolveOptions{TargetPlatform: &v1.Platform{OS: "linux", Architecture: arch}}}}
	_, text, err := oras.FetchBytes(t.Context(), layout, index.Digest.String(), options)
	if err != nil {
		t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	code, plugins := map[string]bool{}, 0
	for _, l := range m.Layers {
		eachFile(t, layout, l, func(name string, body []byte) {
			if strings.HasPrefix(name, "plugins/") && strings.HasSuffix(name, ".wasm") {
				plugins++
			}
			if strings.HasPrefix(name, "compiled/") && strings.HasSuffix(name, "/code") {
				sum := sha256.Sum256(body)
				code[string(sum[:])] = true
			}
		})
	}
	if len(code) == 0 || len(code) != plugins {
		t.Errorf("%s: %d of %d plugins are compiled", arch, len(code), plugins)
	}
	return code
}

// eachFile calls f with the regular files of a layer.
func eachFile(t *testing.T, layout oras.ReadOnlyTarget, layer v1.Descriptor, f func(name string, body []byte)) {
	t.Helper()
	blob, err := layout.Fetch(t.Context(), layer)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	plain, err := gzip.NewReader(blob)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(plain)
	for h, err := files.Next(); !errors.Is(err, io.EOF); h, err = files.Next() {
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			f(h.Name, body)
		}
	}
}

// TestRelease makes a release from a clone, verifies it from another one, and uses what is in it: cosign verifies the image in a
// registry in both formats, and Helm reads the charts. It is about the commit, not about files that have changed since.
func TestRelease(t *testing.T) {
	if os.Getenv("SLUICE_TEST_RELEASE") == "" {
		t.Skip("make test-release: builds everything of a release, twice")
	}
	testenv.RequireProgram(t, map[string]string{"amd64": "qemu-aarch64", "arm64": "qemu-x86_64"}[runtime.GOARCH], "qemu-user")
	cosign, helmProgram := ociregistry.Cosign(t), helm.Program(t)
	work := t.TempDir()
	root := strings.TrimSpace(must(t, "", "git", "rev-parse", "--show-toplevel"))
	for _, clone := range []string{"one", "two/below"} {
		must(t, work, "git", "clone", "-q", "file://"+root, filepath.Join(work, clone))
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key := writeFile(t, filepath.Join(work, "release.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	r := ociregistry.Start(t, ociregistry.Options{})
	out := filepath.Join(work, "release")
	must(t, filepath.Join(work, "one"), "go", "run", "./deploy/release", "-version", "v0.1.0", "-repository", r.Addr+"/sluice", "-key", key,
		"-vulndb", vulnerabilities(t, ""), "-clients", "linux/"+runtime.GOARCH, "-o", out)
	two := filepath.Join(work, "two/below")
	if text := must(t, two, "go", "run", "./deploy/release", "-verify", out); !strings.Contains(text, "has the same") {
		t.Errorf("verify:\n%s", text)
	}
	must(t, out, "sha256sum", "--strict", "--quiet", "-c", sums)

	layout, err := oci.NewFromFS(t.Context(), os.DirFS(filepath.Join(out, "image")))
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(r.Addr + "/sluice")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP, repo.SkipReferrersGC = true, true // as oras does: many registries delete nothing
	index, err := oras.ExtendedCopy(t.Context(), layout, "v0.1.0", repo, "v0.1.0", oras.DefaultExtendedCopyOptions)
	if err != nil {
		t.Fatal(err)
	}
	tag := strings.Replace(index.Digest.String(), ":", "-", 1) + ".sig"
	if _, err := oras.Copy(t.Context(), layout, tag, repo, tag, oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	amd64, arm64 := compiled(t, layout, index, "amd64"), compiled(t, layout, index, "arm64")
	for sum := range amd64 {
		if arm64[sum] {
			t.Error("a plugin has the same machine code for both platforms")
		}
	}
	image := r.Addr + "/sluice@" + index.Digest.String()
	t.Setenv("TUF_ROOT", work)
	t.Setenv("HOME", work)
	public := filepath.Join(out, "sluice.pub")
	for _, format := range []string{"--new-bundle-format=true", "--new-bundle-format=false"} {
		must(t, work, cosign, "verify", "--key", public, "--insecure-ignore-tlog", "--allow-http-registry", format, image)
	}
	must(t, work, cosign, "verify-attestation", "--key", public, "--insecure-ignore-tlog", "--allow-http-registry", "--new-bundle-format=true", "--type", provenanceType, image)
	must(t, out, cosign, "verify-blob", "--key", public, "--insecure-ignore-tlog", "--new-bundle-format=false", "--signature", sums+".sig", sums)
	var found []string // a registry returns them in any order
	if err := repo.Referrers(t.Context(), index, "application/spdx+json", func(list []v1.Descriptor) error {
		for _, d := range list {
			found = append(found, d.Annotations[v1.AnnotationTitle])
		}
		slices.Sort(found)
		return nil
	}); err != nil || !slices.Equal(found, []string{"sluice_linux_amd64.spdx.json", "sluice_linux_arm64.spdx.json"}) {
		t.Errorf("software bills of materials %q, %v", found, err)
	}

	// The chart has the image by digest, and is an artefact in a registry.
	text := must(t, out, helmProgram, "template", "sluice", "sluice-0.1.0.tgz", "--set", "config.clientConnection.server=https://192.0.2.1:6443,config.clusterCIDR={10.0.0.0/8}")
	if !strings.Contains(text, "image: "+image) && !strings.Contains(text, `image: "`+image) {
		t.Errorf("the chart has not image %s:\n%s", image, text)
	}
	for _, name := range []string{"sluice", "sluice-crds"} {
		must(t, out, helmProgram, "push", "--plain-http", name+"-0.1.0.tgz", "oci://"+r.Addr+"/charts")
		must(t, t.TempDir(), helmProgram, "pull", "--plain-http", "oci://"+r.Addr+"/charts/"+name, "--version", "0.1.0")
	}

	// A file that differs is named, and nothing is taken from files that are not in the commit.
	file := filepath.Join(out, "sluice-crds.yaml")
	kinds, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, string(kinds)+"# changed\n")
	if text, err := command(t, two, "go", "run", "./deploy/release", "-verify", out); err == nil || !strings.Contains(text, "sluice-crds.yaml is not what SHA256SUMS says") {
		t.Errorf("a changed file: %v\n%s", err, text)
	}
	writeFile(t, file, string(kinds))
	writeFile(t, filepath.Join(two, "CHANGELOG.md"), "## Unreleased: 0.1\n")
	if text, err := command(t, two, "go", "run", "./deploy/release", "-verify", out); err == nil || !strings.Contains(text, "the clone is not clean") {
		t.Errorf("a clone that is not clean: %v\n%s", err, text)
	}
}

// TestVulnerabilitiesEndARelease: code with a known vulnerability that is called.
func TestVulnerabilitiesEndARelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds govulncheck")
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "go.mod"), "module example.com/m\n\ngo 1.26\n")
	writeFile(t, filepath.Join(dir, "cmd", "a", "main.go"), "package main\n\nimport \"strings\"\n\nfunc main() { println(strings.ToUpper(\"a\")) }\n")
	writeFile(t, filepath.Join(dir, "plugins", "b", "main.go"), "package main\n\nfunc main() {}\n")
	t.Chdir(dir)
	entry := `{"schema_version": "1.3.1", "id": "GO-2026-0001", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z", "summary": "ToUpper shouts", "database_specific": {"url": "https://pkg.go.dev/vuln/GO-2026-0001"},
"affected": [{"package": {"name": "stdlib", "ecosystem": "Go"}, "ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
"ecosystem_specific": {"imports": [{"path": "strings", "symbols": ["ToUpper"]}]}}]}`
	for _, c := range []struct {
		entry, want string
	}{{"", ""}, {entry, "strings.ToUpper"}} {
		r := &release{options: options{vulndb: vulnerabilities(t, c.entry)}}
		if err := r.vulnerabilities(t.Context()); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), "main calls "+c.want) {
			t.Errorf("database %q: %v", c.entry, err)
		}
	}
	r := &release{options: options{vulndb: "file://" + filepath.Join(dir, "none")}}
	if err := r.vulnerabilities(t.Context()); err == nil || !strings.Contains(err.Error(), "VULNDB=") {
		t.Errorf("without a database: %v", err)
	}
}

func TestArgumentsOfAReleaseAreChecked(t *testing.T) {
	for _, c := range []struct {
		o    options
		want string
	}{
		{options{version: "0.1"}, "-version"},
		{options{version: "v0.1.0+a"}, "-version"},
		{options{version: "v0.1.0"}, "-repository"},
	} {
		if err := makeRelease(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
	dir := t.TempDir()
	t.Chdir(dir)
	writeFile(t, filepath.Join(dir, "CHANGELOG.md"), "# Changelog\n\n## Unreleased: 0.2\n\nNew: [a](host/README.md#b), [c](https://example.com).\n\n## 0.1.1\n\nOld.\n")
	const link = "New: [a](https://github.com/sluice-proxy/sluice/blob/%s/host/README.md#b), [c](https://example.com).\n"
	for version, want := range map[string]string{"v0.2.0": "# sluice v0.2.0\n\n" + fmt.Sprintf(link, "v0.2.0"),
		"v0.2.0-rc.1": "# sluice v0.2.0-rc.1\n\n" + fmt.Sprintf(link, "v0.2.0-rc.1"), "v0.1.1": "# sluice v0.1.1\n\nOld.\n"} {
		if got, err := notesOf(version); err != nil || strings.TrimRight(got, "\n") != strings.TrimRight(want, "\n") {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
	if _, err := notesOf("v0.3.0"); err == nil || !strings.Contains(err.Error(), `no section about 0.3.0 among ["Unreleased: 0.2" "0.1.1"]`) {
		t.Errorf("v0.3.0: %v", err)
	}
	if got := differences("1  a\n2  b\n", "1  a\n3  b\n4  c\n"); strings.Join(got, " ") != "b c" {
		t.Errorf("differences %q", got)
	}
}
