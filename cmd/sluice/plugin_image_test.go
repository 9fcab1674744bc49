package main

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// TestPluginTravelsThroughARegistry: from an author's file to a registry with users, and by tag or digest to another folder and
// into a configuration.
func TestPluginTravelsThroughARegistry(t *testing.T) {
	reg := ociregistry.Start(t, ociregistry.Options{Users: true, Deletes: true})
	module := moduleThatKeeps(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, text []byte) string {
		t.Helper()
		if err := os.WriteFile(path(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	if _, err := zip.Write(module); err != nil || zip.Close() != nil {
		t.Fatal(err)
	}
	plain, packed := write("keep.wasm", module), write("keep.wasm.gz", zipped.Bytes())
	write("config.json", []byte(reg.DockerConfig(ociregistry.Password)))
	wrong := write("wrong.json", []byte(reg.DockerConfig("wrong")))
	t.Setenv("DOCKER_CONFIG", dir)
	run := func(code int, args ...string) (out string) {
		t.Helper()
		var o, e bytes.Buffer
		oldOut, oldErr := stdout, stderr
		stdout, stderr = printable.NewWriter(&o), printable.NewWriter(&e)
		got := execute(t.Context(), args)
		stdout, stderr = oldOut, oldErr
		if got != code || code == 0 && e.Len() > 0 {
			t.Errorf("%q: code %d, want %d\n%s%s", args, got, code, o.String(), e.String())
		}
		if code != 0 {
			return e.String()
		}
		return strings.TrimSuffix(o.String(), "\n")
	}
	expect := func(what, got string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("%s: no %q in\n%s", what, text, got)
			}
		}
	}
	image := reg.Addr + "/acme/keep"
	ref := run(0, "plugin", "push", "-o", "ref", packed, image+":v1")
	if !strings.HasPrefix(ref, image+"@sha256:") {
		t.Fatalf("push prints %q", ref)
	}
	if again := run(0, "plugin", "push", "-o", "ref", plain, image+":v2"); again != ref {
		t.Errorf("the same module is %s, then %s", ref, again)
	}
	if other := run(0, "plugin", "push", "-o", "ref", plain, image+":v3", "--generic-config"); other == ref || !strings.HasPrefix(other, image+"@sha256:") {
		t.Errorf("with a generic configuration: %s", other)
	} else {
		run(0, "plugin", "check", other)
	}
	listed := run(0, "plugin", "tags", image)
	for _, tag := range []string{"v1", "v2"} {
		if n := strings.Count(listed, "\n"+tag+"   "+ref); n != 1 {
			t.Errorf("%s is listed %d times:\n%s", tag, n, listed)
		}
	}
	expect("a tag is deleted", run(0, "plugin", "untag", image+":v3"), "deleted "+image+":v3")
	if left := run(0, "plugin", "tags", image); strings.Contains(left, "v3") || !strings.Contains(left, "v2") {
		t.Errorf("after v3 was deleted:\n%s", left)
	}
	expect("twice", run(1, "plugin", "untag", image+":v3"), "plugin untag: image "+image+":v3: not found")
	expect("by digest", run(2, "plugin", "untag", ref), "has a digest: want REGISTRY/NAME:TAG")
	expect("tags of a tag", run(2, "plugin", "tags", image+":v1"), "want REGISTRY/NAME, without a tag or digest")
	digest := run(0, "plugin", "digest", plain)
	if unpacked := run(0, "plugin", "digest", packed); unpacked != digest || !strings.HasPrefix(digest, "sha256:") {
		t.Errorf("digest %s, compressed %s", digest, unpacked)
	}
	if pinned := run(0, "plugin", "digest", image+":v2"); pinned != ref {
		t.Errorf("the tag is %s, want %s", pinned, ref)
	}
	for i, from := range []string{image + ":v1", ref} {
		to := path([]string{"tag.wasm", "digest.wasm"}[i])
		if out := run(0, "plugin", "pull", from, "--file", to); out != ref+"\n"+digest+"  "+to {
			t.Errorf("pull prints %q", out)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, module) {
			t.Errorf("%s: %d bytes, %v", from, len(got), err)
		}
	}
	expect("a file that exists", run(1, "plugin", "pull", ref, "--file", plain), "file exists")
	old := write("old.wasm", []byte("old"))
	run(1, "plugin", "pull", image+":v9", "--file", old, "--force")
	if text, err := os.ReadFile(old); err != nil || string(text) != "old" {
		t.Errorf("after a pull that fails: %q, %v", text, err)
	}
	run(0, "plugin", "pull", ref, "--file", old, "--force")
	if text, err := os.ReadFile(old); err != nil || !bytes.Equal(text, module) {
		t.Errorf("after a pull with --force: %d bytes, %v", len(text), err)
	}
	expect("inspect", run(0, "plugin", "inspect", image+":v1", "-o", "yaml"), "digest: "+digest)
	run(0, "plugin", "check", packed)

	// What push prints can be applied.
	for flag, want := range map[string]string{"": "", "--use=shop,lab": "  use:\n    namespaces:\n    - shop\n    - lab\n    settings: []\n"} {
		args := []string{"plugin", "push", plain, image + ":v1"}
		if flag != "" {
			args = append(args, flag)
		}
		object := "apiVersion: sluice.dev/v1alpha1\nkind: ServicePlugin\nmetadata:\n  name: keep\nspec:\n  source:\n    image:\n      ref: " + ref + "\n    type: Image\n"
		if got := run(0, args...) + "\n"; got != object+want {
			t.Errorf("push %s prints\n%s\nwant\n%s", flag, got, object+want)
		}
	}

	// What push and pull prints is what a configuration needs.
	file := write("sluice.yaml", []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginCacheDir: cache\n"+
		"pluginImages: {dockerConfig: config.json}\nplugins: [{name: image, image: \""+ref+"\", digest: \""+digest+"\"}, {name: file, file: keep.wasm.gz, digest: \""+digest+"\"}]\n"+
		"policies: [{name: p, plugins: [{name: image}, {name: file}]}]\ndefaultPolicy: p\n"))
	expect("config check", run(0, "config", "check", file), ": valid")

	// Signed with one of two keys. What was verified is in the cache.
	keyFile := func(name string) (private, public string) {
		t.Helper()
		pub, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		a, aerr := x509.MarshalPKCS8PrivateKey(key)
		b, berr := x509.MarshalPKIXPublicKey(pub)
		if err := errors.Join(aerr, berr); err != nil {
			t.Fatal(err)
		}
		return write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: a})), write(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b}))
	}
	ours, ourPublic := keyFile("ours")
	theirs, _ := keyFile("theirs")
	_, lostPublic := keyFile("lost")
	verify := func(image, key string) string {
		t.Helper()
		return write("signed.yaml", []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginCacheDir: signed-cache\n"+
			"pluginImages: {dockerConfig: config.json}\nplugins: [{name: keep, image: \""+image+"\", verify: {key: '"+key+"'}}]\npolicies: [{name: p, plugins: [{name: keep}]}]\ndefaultPolicy: p\n"))
	}
	expect("not signed", run(1, "config", "check", verify(ref, ourPublic)), "plugin keep: image "+ref+": verify with "+ourPublic+": not signed")
	run(0, "plugin", "push", "-o", "ref", plain, image+":v1", "--sign", theirs)
	expect("signed by others", run(1, "config", "check", verify(ref, ourPublic)), "none of 2 signatures is of this key")
	if again := run(0, "plugin", "push", "-o", "ref", plain, image+":v1", "--sign", ours); again != ref {
		t.Errorf("signed, it is %s, was %s", again, ref)
	}
	if signed := run(0, "plugin", "tags", image); strings.Contains(signed, "sha256-") {
		t.Errorf("tags of signatures are listed:\n%s", signed)
	}
	expect("signed by us, too", run(0, "config", "check", verify(ref, ourPublic)), ": valid")
	expect("no key", run(1, "config", "check", verify(ref, path("none.pub"))), "public key: stat "+path("none.pub")+": no such file")
	expect("a key of no use", run(1, "config", "check", verify(ref, ours)), ours+": no public key in PEM")
	expect("another key", run(1, "config", "check", verify(ref, lostPublic)), "none of 4 signatures is of this key")
	expect("a public key to sign with", run(1, "plugin", "push", plain, image+":v1", "--sign", ourPublic), "--sign: "+ourPublic+": PEM of type \"PUBLIC KEY\"")

	for what, c := range map[string]struct {
		code int
		args []string
		want []string
	}{
		"no tag":       {2, []string{"push", plain, image}, []string{"has no tag: want REGISTRY/NAME:TAG"}},
		"a digest":     {2, []string{"push", plain, ref}, []string{"has a digest: want REGISTRY/NAME:TAG"}},
		"no registry":  {2, []string{"push", plain, "keep:v1"}, []string{"does not begin with a registry"}},
		"not a module": {1, []string{"push", wrong, image + ":v1"}, []string{wrong, "not a WebAssembly module"}},
		"a component":  {1, []string{"push", write("component.wasm", []byte("\x00asm\x0d\x00\x01\x00")), image + ":v1"}, []string{"component.wasm: module refused: a component, not a core module"}},
		"cut off":      {1, []string{"push", write("cut.wasm", module[:len(module)-1]), image + ":v1"}, []string{"cut.wasm: module refused: at byte "}},
		"no file":      {1, []string{"push", path("none"), image + ":v1"}, []string{"none: no such file"}},
		"password":     {1, []string{"push", plain, image + ":v1", "--docker-config", wrong}, []string{"image " + image + ":v1: ", "with the credentials in " + wrong}},
		"no CA":        {1, []string{"push", plain, image + ":v1", "--ca-file", path("none.crt")}, []string{"plugin push: --ca-file: stat " + path("none.crt") + ": no such file"}},
		"a bad CA":     {1, []string{"pull", image + ":v1", "--ca-file", wrong}, []string{"plugin pull: --ca-file: " + wrong + " has no certificate in PEM"}},
		"no password":  {1, []string{"pull", image + ":v1", "--docker-config", write("empty.json", []byte("{}"))}, []string{"has no credentials for " + reg.Addr}},
		"text":         {1, []string{"digest", wrong}, []string{wrong + ": not a WebAssembly module"}},
		"a file":       {1, []string{"pull", image + ":v1", "--file", plain}, []string{plain + ": file exists"}},
		"no image":     {1, []string{"pull", image + ":v9"}, []string{"not found: the registry has no such image"}},
	} {
		expect(what, run(c.code, append([]string{"plugin"}, c.args...)...), c.want...)
	}
	own := ociregistry.Start(t, ociregistry.Options{TLS: true})
	if got := run(0, "plugin", "push", "-o", "ref", plain, own.Addr+"/acme/keep:v1", "--ca-file", own.CAFile); strings.TrimPrefix(got, own.Addr) != strings.TrimPrefix(ref, reg.Addr) {
		t.Errorf("in another registry it is %s, was %s", got, ref)
	}
	expect("a registry that deletes nothing", run(1, "plugin", "untag", own.Addr+"/acme/keep:v1", "--ca-file", own.CAFile), "the registry does not delete it: 405")
	expect("an authority of its own", run(1, "plugin", "pull", own.Addr+"/acme/keep:v1"), "certificate signed by unknown authority", "--ca-file adds authorities")
	reg.Stop()
	expect("verified with the signatures in the cache", run(0, "config", "check", verify(ref, ourPublic)), ": valid")
	run(1, "config", "check", verify(ref, lostPublic))
	expect("an outage", run(1, "plugin", "push", plain, image+":v1"), "connection refused")
}

// moduleThatKeeps returns a module that keeps all weights.
func moduleThatKeeps(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	return testenv.WAT(t, strings.Replace(string(text), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1), "--no-check")
}
