package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// TestCosignAndSluiceVerifyEachOther: the real cosign 3, with registries that list referrers and that do not, keys of both kinds,
// and both formats.
func TestCosignAndSluiceVerifyEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("builds cosign")
	}
	program := ociregistry.Cosign(t)
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, text []byte) string {
		t.Helper()
		if err := os.WriteFile(path(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	cosign := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "COSIGN_PASSWORD=", "TUF_ROOT=" + dir}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	sluice := func(args ...string) (string, bool) {
		var o, e bytes.Buffer
		oldOut, oldErr := stdout, stderr
		stdout, stderr = printable.NewWriter(&o), printable.NewWriter(&e)
		code := execute(t.Context(), args)
		stdout, stderr = oldOut, oldErr
		return strings.TrimSpace(o.String() + e.String()), code == 0
	}
	module := write("keep.wasm", moduleThatKeeps(t))
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]crypto.Signer{"ecdsa": ecKey, "ed25519": edKey}
	for name, key := range all {
		private, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
		write(name+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
		if out, err := cosign("import-key-pair", "--key", name+".pem", "--output-key-prefix", "cosign-"+name); err != nil {
			t.Fatal(err, out)
		}
	}
	// check returns what config check says of an image that a key has to have signed.
	check := func(image, key string) (string, bool) {
		return sluice("config", "check", write("signed.yaml", []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginCacheDir: "+t.TempDir()+
			"\nplugins: [{name: keep, image: \""+image+"\", verify: {key: '"+path(key+".pub")+"'}}]\npolicies: [{name: p, plugins: [{name: keep}]}]\ndefaultPolicy: p\n")))
	}
	const bundles, simple = "--new-bundle-format=true", "--new-bundle-format=false"
	for what, o := range map[string]ociregistry.Options{"a registry that lists referrers": {Referrers: true}, "a registry that does not": {}} {
		reg := ociregistry.Start(t, o)
		for name := range all {
			other := map[string]string{"ecdsa": "ed25519", "ed25519": "ecdsa"}[name]
			for _, format := range []string{bundles, simple} {
				ref, ok := sluice("plugin", "push", "-o", "ref", module, reg.Addr+"/acme/"+name+format[2:5]+strings.TrimPrefix(format, "--new-bundle-format=")+":v1")
				if !ok {
					t.Fatal(ref)
				}
				if out, ok := check(ref, name); ok || !strings.Contains(out, "not signed") {
					t.Errorf("%s, %s, not signed: %s", what, name, out)
				}
				if out, err := cosign("sign", "--key", "cosign-"+name+".key", "--tlog-upload=false", "--use-signing-config=false", "--yes", "--allow-http-registry", format, ref); err != nil {
					t.Fatal(err, out)
				}
				if out, ok := check(ref, name); !ok {
					t.Errorf("%s, %s, signed by cosign with %s: %s", what, name, format, out)
				}
				if out, ok := check(ref, other); ok || !strings.Contains(out, "none of 1 signatures is of this key") {
					t.Errorf("%s, %s, signed by cosign with another key: %s", what, name, out)
				}
			}
			image := reg.Addr + "/acme/" + name + ":v1"
			ref, ok := sluice("plugin", "push", "-o", "ref", module, image, "--sign", path(name+".pem"))
			if again, _ := sluice("plugin", "push", "-o", "ref", module, image, "--sign", path(name+".pem")); !ok || again != ref {
				t.Fatal(ref, again)
			}
			if out, ok := check(ref, name); !ok {
				t.Errorf("%s, %s, signed by sluice: %s", what, name, out)
			}
			for _, format := range []string{bundles, simple} {
				out, err := cosign("verify", "--key", name+".pub", "--insecure-ignore-tlog", "--allow-http-registry", format, ref)
				if err != nil || strings.Count(out, "docker-manifest-digest") != 1 {
					t.Errorf("%s, %s, signed twice by sluice, for cosign with %s: %v: %s", what, name, format, err, out)
				}
				if out, err := cosign("verify", "--key", other+".pub", "--insecure-ignore-tlog", "--allow-http-registry", format, ref); err == nil {
					t.Errorf("%s, %s, for cosign with another key and %s: %s", what, name, format, out)
				}
			}
		}
	}
}
