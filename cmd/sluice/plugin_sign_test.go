package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// TestImageIsSignedWhereReferrersAreRefused: by a proxy or an old registry. The older format is enough for nodes, and signing
// again adds nothing.
func TestImageIsSignedWhereReferrersAreRefused(t *testing.T) {
	reg := ociregistry.Start(t, ociregistry.Options{})
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: reg.Addr})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	private, perr := x509.MarshalPKCS8PrivateKey(key)
	public, kerr := x509.MarshalPKIXPublicKey(key.Public())
	if err := errors.Join(err, perr, kerr); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	write := func(name string, text []byte) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	module := write("keep.wasm", moduleThatKeeps(t))
	signer := write("key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	write("key.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
	run := func(args ...string) (code int, out, warnings string) {
		var o, e bytes.Buffer
		oldOut, oldErr := stdout, stderr
		stdout, stderr = printable.NewWriter(&o), printable.NewWriter(&e)
		defer func() { stdout, stderr = oldOut, oldErr }()
		code = execute(t.Context(), args)
		return code, strings.TrimSpace(o.String()), e.String()
	}
	for status, repository := range map[int]string{400: "/a/keep", 403: "/b/keep", 405: "/c/keep", 500: "/d/keep"} {
		signatures := 0 // pushed
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, "/referrers/") {
				w.WriteHeader(status)
				return
			}
			if req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/manifests/sha256-") {
				signatures++
			}
			proxy.ServeHTTP(w, req)
		}))
		image := strings.TrimPrefix(s.URL, "http://") + repository
		var ref string
		for _, when := range []string{"new", "signed"} {
			code, out, warnings := run("plugin", "push", "-o", "ref", module, image+":v1", "--sign", signer)
			if ref = out; code != 0 || !strings.HasPrefix(ref, image+"@sha256:") || strings.Count(warnings, "warning: plugin push: signed in cosign's older format only: ") != 1 {
				t.Errorf("%d, %s: code %d, %q, warnings %q", status, when, code, out, warnings)
			}
		}
		if signatures != 1 {
			t.Errorf("%d: %d signatures were pushed, want one", status, signatures)
		}
		file := write("sluice.yaml", []byte("apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginCacheDir: cache\n"+
			"plugins: [{name: keep, image: \""+ref+"\", verify: {key: key.pub}}]\npolicies: [{name: p, plugins: [{name: keep}]}]\ndefaultPolicy: p\n"))
		if code, _, text := run("config", "check", file); code != 0 {
			t.Errorf("%d: %s", status, text)
		}
		s.Close()
	}
}
