package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// TestConfigCheckPinsImages: a user who writes a tag is told the digest, and with that the file is valid.
func TestConfigCheckPinsImages(t *testing.T) {
	reg := ociregistry.Start(t, ociregistry.Options{Users: true})
	module := moduleThatKeeps(t)
	ref := reg.Push(ociregistry.Image{Name: "acme/keep", Tag: "v1", Module: module})
	dir := t.TempDir()
	file := filepath.Join(dir, "sluice.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pull.json", reg.DockerConfig(ociregistry.Password))
	check := func(image string) (code int, out, errs string) {
		t.Helper()
		write("sluice.yaml", "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginCacheDir: cache\npluginImages: {dockerConfig: pull.json}\n"+
			"plugins: [{name: keep, image: \""+image+"\"}]\npolicies: [{name: p, plugins: [{name: keep}]}]\ndefaultPolicy: p\n")
		var o, e bytes.Buffer
		oldOut, oldErr := stdout, stderr
		stdout, stderr = printable.NewWriter(&o), printable.NewWriter(&e)
		defer func() { stdout, stderr = oldOut, oldErr }()
		code = execute(t.Context(), []string{"config", "check", file})
		return code, o.String(), e.String()
	}
	code, _, errs := check(ref.Name() + ":v1")
	if code != 1 || !strings.Contains(errs, "plugins[0].image: tag v1 can change") || !strings.Contains(errs, "write "+ref.String()+"\n") {
		t.Errorf("a tag: code %d\n%s", code, errs)
	}
	code, out, errs := check(ref.String())
	if code != 0 || errs != "" || !strings.HasSuffix(out, ": valid\n") {
		t.Errorf("its digest: code %d\n%s%s", code, out, errs)
	}
	reg.Stop()
	if code, _, errs = check(ref.String()); code != 0 {
		t.Errorf("from the cache: code %d\n%s", code, errs)
	}
	other := strings.Replace(ref.String(), "acme/keep", "acme/other", 1)
	if code, _, errs = check(other); code != 0 {
		t.Errorf("the same module elsewhere: code %d\n%s", code, errs) // the digest is what counts
	}
	none := ref.Name() + "@sha256:" + strings.Repeat("0", 64)
	if code, _, errs = check(none); code != 1 || !strings.Contains(errs, "plugin keep: image "+none+": ") || !strings.Contains(errs, "connection refused") {
		t.Errorf("an outage: code %d\n%s", code, errs)
	}
}
