package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

const module = "github.com/sluice-proxy/sluice"

// builder runs the go command in the current checkout.
type builder struct {
	root    string // of the module
	goroot  string
	temp    string
	version string
	created time.Time
	sboms   map[platform][]byte
}

func newBuilder(ctx context.Context, version string, created time.Time) (*builder, error) {
	b := &builder{version: version, created: created, sboms: map[platform][]byte{}}
	out, err := b.run(ctx, nil, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return nil, fmt.Errorf("not in a checkout of sluice: %w", err)
	}
	b.root = strings.TrimSpace(out)
	if out, err = b.run(ctx, nil, "env", "GOROOT"); err != nil {
		return nil, err
	}
	b.goroot = strings.TrimSpace(out)
	b.temp, err = os.MkdirTemp("", "sluice-image-")
	return b, err
}

func (b *builder) close() { _ = os.RemoveAll(b.temp) }

func (b *builder) run(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = b.root, append(os.Environ(), env...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out.String(), nil
}

// sluice builds the binary for a platform and returns it with the licenses of all its modules. precompiled is what it has to know
// of compiled plugins.
func (b *builder) sluice(ctx context.Context, p platform, precompiled string) ([]oci.File, error) {
	out := filepath.Join(b.temp, "sluice-"+p.arch)
	// -buildvcs=false makes the binary independent of the clone; the version identifies the sources.
	_, err := b.run(ctx, []string{"CGO_ENABLED=0", "GOOS=" + p.os, "GOARCH=" + p.arch},
		"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+b.version+" -X main.precompiled="+precompiled, "-o", out, "./cmd/sluice")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	body, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(out)
	if err != nil {
		return nil, err
	}
	files, ids, err := b.licenses(ctx, info)
	if err == nil {
		b.sboms[p], err = sbom(info, b.version, p, b.created, ids)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: licenses: %w", p, err)
	}
	return append(files, oci.File{Name: "sluice", Mode: 0o755, Body: body}), nil
}

// plugins builds every bundled plugin, as the Makefile does.
func (b *builder) plugins(ctx context.Context) ([]oci.File, error) {
	mains, err := filepath.Glob(filepath.Join(b.root, "plugins", "*", "main.go"))
	if err == nil && len(mains) == 0 {
		err = errors.New("no plugins found")
	}
	if err != nil {
		return nil, fmt.Errorf("plugins: %w", err)
	}
	var files []oci.File
	for _, main := range mains {
		name := filepath.Base(filepath.Dir(main))
		out := filepath.Join(b.temp, name+".wasm")
		_, err := b.run(ctx, []string{"GOOS=wasip1", "GOARCH=wasm"},
			"build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "./plugins/"+name)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", name, err)
		}
		said, err := manifest.FindFile(filepath.Dir(main))
		if err == nil {
			err = manifest.EmbedFile(out, said)
		}
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", name, err)
		}
		body, err := os.ReadFile(out)
		if err != nil {
			return nil, err
		}
		files = append(files, oci.File{Name: "plugins/" + name + ".wasm", Mode: 0o644, Body: body})
	}
	return files, nil
}

// isLicense matches license files, but not those of documents, as opencontainers/go-digest has one.
var isLicense = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-.](txt|md|apache|mit|bsd|mpl).*)?$`)

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|notice|copying|copyright|patents)([.-].*)?$`)

// licenses collects the license and notice files of the modules in a binary, and Go's license, and says by module which licenses
// these are. A license that is not known is an error.
func (b *builder) licenses(ctx context.Context, info *buildinfo.BuildInfo) (files []oci.File, ids map[string]string, err error) {
	args := []string{"list", "-m", "-f", "{{.Path}}\t{{.Dir}}", module}
	for _, m := range info.Deps {
		args = append(args, m.Path)
	}
	out, err := b.run(ctx, nil, args...)
	if err != nil {
		return nil, nil, err
	}
	ids = map[string]string{}
	for line := range strings.Lines("go\t" + b.goroot + "\n" + out) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		found, err := licensesIn(dir, path.Join("licenses", name))
		if err != nil {
			return nil, nil, fmt.Errorf("module %s: %w", name, err)
		}
		var texts []string
		for _, f := range found {
			if isLicense.MatchString(path.Base(f.Name)) {
				texts = append(texts, string(f.Body))
			}
		}
		if ids[name] = licenseIn(texts...); ids[name] == "" {
			return nil, nil, fmt.Errorf("module %s: a license that is not known: say in deploy/image/sbom.go which one, if the image may have it", name)
		}
		files = append(files, found...)
	}
	return files, ids, nil
}

func licensesIn(dir, to string) ([]oci.File, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []oci.File
	for _, d := range list {
		if !licenceFile.MatchString(d.Name()) || !d.Type().IsRegular() || slices.Contains([]string{".go", ".sh"}, filepath.Ext(d.Name())) {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, d.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, oci.File{Name: path.Join(to, d.Name()), Mode: 0o644, Body: body})
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no license file in %s", dir)
	}
	return files, nil
}
