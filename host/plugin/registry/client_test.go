package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// module returns something that is as long as a small module and as hard to compress.
func module(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return append([]byte("\x00asm\x01\x00\x00\x00"), b...)
}

func pull(t *testing.T, o Options, ref imageref.Ref) ([]byte, error) {
	t.Helper()
	c, err := NewClient(o)
	if err != nil {
		return nil, err
	}
	a, err := c.Pull(t.Context(), ref)
	return a.Module, err
}

func want(t *testing.T, what string, got, module []byte, err error) {
	t.Helper()
	if err != nil || !bytes.Equal(got, module) {
		t.Errorf("%s: %d bytes, %v", what, len(got), err)
	}
}

func wantError(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPullFromARegistry: a real one, on a loopback address without TLS.
func TestPullFromARegistry(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{})
	wasm := module(100_000)
	ref := r.Push(ociregistry.Image{Name: "acme/spill", Tag: "v1", Module: wasm})
	got, err := pull(t, Options{}, ref)
	want(t, "CNCF layout", got, wasm, err)

	for _, config := range []string{"application/vnd.oci.image.config.v1+json", "application/vnd.oci.empty.v1+json"} {
		got, err = pull(t, Options{}, r.Push(ociregistry.Image{Name: "acme/spill", ConfigType: config, Module: wasm}))
		want(t, config, got, wasm, err)
	}
	got, err = pull(t, Options{}, r.Push(ociregistry.Image{Name: "acme/spill", ModuleType: "application/vnd.wasm.content.layer.v1+wasm", Module: wasm}))
	want(t, "older media type", got, wasm, err)

	c, err := NewClient(Options{})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := c.Resolve(t.Context(), &imageref.TagError{Name: ref.Name(), Tag: "v1"})
	if err != nil || resolved != ref {
		t.Errorf("the tag is %s, %v; want %s", resolved, err, ref)
	}
	_, err = c.Resolve(t.Context(), &imageref.TagError{Name: ref.Name(), Tag: "v2"})
	wantError(t, "another tag", err, ":v2: ", "not found")

	other := ref
	other.Digest = "sha256:" + strings.Repeat("0", 64)
	_, err = pull(t, Options{}, other)
	wantError(t, "no such digest", err, "image "+other.String(), "not found", "no such image")
	other = ref
	other.Repository = "acme/none"
	_, err = pull(t, Options{}, other)
	wantError(t, "no such repository", err, "no such image")

	_, err = pull(t, Options{}, r.Push(ociregistry.Image{Name: "acme/spill", ModuleType: "application/vnd.oci.image.layer.v1.tar+gzip", Module: wasm}))
	wantError(t, "an image of a container", err, "no layer is a WebAssembly module", "tar+gzip")
	_, err = pull(t, Options{}, r.Push(ociregistry.Image{Name: "acme/spill", Module: wasm, Layers: 2}))
	wantError(t, "two layers", err, "2 layers are WebAssembly modules, want one")
	_, err = pull(t, Options{}, r.Push(ociregistry.Image{Name: "acme/spill", Module: module(MaxModule)}))
	wantError(t, "a large layer", err, "bytes, the limit is 16777216")

	r.Stop()
	_, err = pull(t, Options{}, ref)
	wantError(t, "outage", err, "image "+ref.String(), "connection refused")
	r.Restart()
	got, err = pull(t, Options{}, ref)
	want(t, "after the outage", got, wasm, err)
}

// TestRegistryWithUsersAndItsOwnAuthority: a real one, with TLS.
func TestRegistryWithUsersAndItsOwnAuthority(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{TLS: true, Users: true})
	wasm := module(1000)
	ref := r.Push(ociregistry.Image{Name: "spill", Module: wasm})
	s := Settings{CAFile: r.CAFile, DockerConfig: file(t, r.DockerConfig(ociregistry.Password))}
	got, err := pull(t, Options{Settings: s}, ref)
	want(t, "all that is needed", got, wasm, err)

	for what, c := range map[string]struct {
		change func(*Settings)
		texts  []string
	}{
		"no authority":      {func(s *Settings) { s.CAFile = "" }, []string{"certificate", "pluginImages.caFile"}},
		"no credentials":    {func(s *Settings) { s.DockerConfig = "" }, []string{"without credentials: pluginImages.dockerConfig"}},
		"others":            {func(s *Settings) { s.DockerConfig = file(t, `{"auths": {"ghcr.io": {"auth": "YTpi"}}}`) }, []string{"has no credentials for " + r.Addr}},
		"a wrong password":  {func(s *Settings) { s.DockerConfig = file(t, r.DockerConfig("secret")) }, []string{"with the credentials in "}},
		"a damaged file":    {func(s *Settings) { s.DockerConfig = file(t, `{"auths": {"`+r.Addr+`": {"auth": "secret!"}}}`) }, []string{"not a docker configuration"}},
		"a missing file":    {func(s *Settings) { s.DockerConfig = "/nonexistent/config.json" }, []string{"no such file"}},
		"no certificates":   {func(s *Settings) { s.CAFile = file(t, "secret") }, []string{"no certificate in PEM"}},
		"an unlisted http":  {func(s *Settings) {}, nil},
		"plain HTTP to TLS": {func(s *Settings) { s.PlainHTTP = []string{r.Addr} }, []string{"400"}},
	} {
		other := s
		c.change(&other)
		_, err := pull(t, Options{Settings: other}, ref)
		if c.texts == nil && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		wantError(t, what, err, c.texts...)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has a secret: %v", what, err)
		}
	}
}

// front is a server before a real registry, which answers in its place what answer does not leave to it.
func front(t *testing.T, r *ociregistry.Registry, answer func(w http.ResponseWriter, req *http.Request) bool) string {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Addr})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !answer(w, req) {
			proxy.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestRegistryThatMisbehaves: what is between sluice and a real registry.
func TestRegistryThatMisbehaves(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{})
	wasm := module(1000)
	ref := r.Push(ociregistry.Image{Name: "spill", Module: wasm})
	isBlob := func(req *http.Request) bool { return strings.Contains(req.URL.Path, "/blobs/") }
	isManifest := func(req *http.Request) bool { return strings.Contains(req.URL.Path, "/manifests/") }
	through := func(o Options, answer func(http.ResponseWriter, *http.Request) bool) ([]byte, error) {
		other := ref
		other.Registry = front(t, r, answer)
		return pull(t, o, other)
	}

	_, err := through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isBlob(req) {
			_, _ = w.Write(module(1000))
		}
		return isBlob(req)
	})
	wantError(t, "another layer", err, "layer sha256:", "the registry sent something else")

	_, err = through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isBlob(req) {
			_, _ = w.Write(wasm[:500])
		}
		return isBlob(req)
	})
	wantError(t, "half a layer", err, "layer sha256:")

	_, err = through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isBlob(req) {
			for range 1 << 20 { // until the client closes the connection
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					break
				}
			}
		}
		return isBlob(req)
	})
	wantError(t, "a layer without end", err, "layer sha256:")

	_, err = through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isManifest(req) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", ref.Digest)
			_, _ = io.WriteString(w, `{"layers": []}`)
		}
		return isManifest(req)
	})
	wantError(t, "another manifest", err, "the registry sent something else")

	_, err = through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isManifest(req) {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", ref.Digest)
			w.Header().Set("Content-Length", fmt.Sprint(1<<30))
			w.WriteHeader(http.StatusOK)
		}
		return isManifest(req)
	})
	wantError(t, "a large manifest", err, "has 1073741824 bytes, the limit is 262144")

	started := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = through(Options{Timeout: 2 * time.Second}, func(w http.ResponseWriter, req *http.Request) bool {
		if isBlob(req) { // the header, and nothing else
			w.Header().Set("Content-Length", fmt.Sprint(len(wasm)))
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			close(started)
			select {
			case <-req.Context().Done():
			case <-ctx.Done():
			}
		}
		return isBlob(req)
	})
	wantError(t, "a slow body", err, "not complete after 2s")

	_, err = through(Options{}, func(w http.ResponseWriter, req *http.Request) bool {
		if isBlob(req) {
			http.Error(w, "broken", http.StatusInternalServerError)
		}
		return isBlob(req)
	})
	wantError(t, "status 500", err, "500")
}

// TestRedirects: registries keep layers elsewhere.
func TestRedirects(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{Users: true})
	wasm := module(1000)
	ref := r.Push(ociregistry.Image{Name: "spill", Module: wasm})
	seen := make(chan string, 100)
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen <- req.Header.Get("Authorization")
		_, _ = w.Write(wasm)
	}))
	defer storage.Close()
	redirect := func(to string) string {
		return front(t, r, func(w http.ResponseWriter, req *http.Request) bool {
			blob := strings.Contains(req.URL.Path, "/blobs/")
			if blob {
				target := to
				if to == "" {
					target = req.URL.Path
				}
				http.Redirect(w, req, target, http.StatusTemporaryRedirect)
			}
			return blob
		})
	}
	at := func(registry string) (imageref.Ref, Options) {
		ref.Registry = registry
		config := strings.ReplaceAll(r.DockerConfig(ociregistry.Password), r.Addr, registry)
		return ref, Options{Settings: Settings{DockerConfig: file(t, config)}}
	}

	other, o := at(redirect(storage.URL))
	got, err := pull(t, o, other)
	want(t, "elsewhere", got, wasm, err)
	if auth := <-seen; auth != "" {
		t.Errorf("the credentials of the registry were sent elsewhere: %s", auth)
	}
	other, o = at(redirect(""))
	_, err = pull(t, o, other)
	wantError(t, "in a circle", err, "more than 5 redirects")
	other, o = at(redirect("http://192.0.2.1/blob"))
	_, err = pull(t, o, other)
	wantError(t, "without TLS", err, "leads to 192.0.2.1 without TLS: list that in pluginImages.plainHTTP")
}

// TestProxy: a registry that only a proxy reaches, and that is asked without TLS because it is listed.
func TestProxy(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{})
	wasm := module(1000)
	ref := r.Push(ociregistry.Image{Name: "spill", Module: wasm})
	ref.Registry = "registry.invalid:5000"
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		if p.In.URL.Host != ref.Registry {
			t.Errorf("the proxy is asked for %s", p.In.URL)
		}
		p.Out.URL.Host = r.Addr
	}})
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pull(t, Options{Settings: Settings{PlainHTTP: []string{ref.Registry}}, Proxy: http.ProxyURL(address)}, ref)
	want(t, "through a proxy", got, wasm, err)
}

// TestPlainHTTPIsRefused: only loopback addresses are asked without TLS.
func TestPlainHTTPIsRefused(t *testing.T) {
	c, err := NewClient(Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.explain(t.Context(), "registry.lab:5000", fmt.Errorf("get: %w", http.ErrSchemeMismatch))
	wantError(t, "no TLS", err, "list registry.lab:5000 in pluginImages.plainHTTP")
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "127.0.0.1:5000": true, "[::1]:5000": true, "::1": true, "127.1.2.3": true,
		"localhost.example.com": false, "10.0.0.1:80": false, "127.0.0.1.example.com": false, "[fd00::1]:80": false,
	} {
		if isLoopback(host) != want {
			t.Errorf("%s: %t", host, !want)
		}
	}
}

func TestCacheIsVerifiedAndBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	now := time.Unix(1_000_000, 0)
	tick := func() time.Time { now = now.Add(time.Second); return now }
	artifact := func(wasm []byte) (Artifact, imageref.Ref) {
		m := fmt.Appendf(nil, `{"schemaVersion":2,"layers":[{"mediaType":"application/wasm","digest":%q,"size":%d}]}`, digestOf(wasm), len(wasm))
		return Artifact{m, wasm}, imageref.Ref{Registry: "a.b", Repository: "c", Digest: digestOf(m)}
	}
	for _, dir := range []string{dir, ""} {
		c, err := OpenCache(dir, tick)
		if err != nil {
			t.Fatal(err)
		}
		var all []imageref.Ref
		for i := range 3 {
			a, ref := artifact(module(1000))
			all = append(all, ref)
			keep := []imageref.Ref{}
			if i == 2 && dir == "" {
				keep = all[1:] // what is used is not known in memory
			}
			if err := c.Put(a, keep, 2800); err != nil {
				t.Fatal(err)
			}
			got, err := c.Get(ref)
			want(t, "what was put", got, a.Module, err)
		}
		has := func(i int) bool {
			_, err := c.Get(all[i])
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			return err == nil
		}
		if has(0) || !has(1) || !has(2) {
			t.Errorf("%q: the oldest is not what was deleted: %t %t %t", dir, has(0), has(1), has(2))
		}
		a, ref := artifact(module(1000))
		wantError(t, "no room", c.Put(a, []imageref.Ref{all[1], all[2], ref}, 2800), "pluginImages.cacheMiB")
		if !has(1) || !has(2) {
			t.Errorf("%q: what is in use was deleted", dir)
		}
	}

	c, err := OpenCache(dir, tick) // another process
	if err != nil {
		t.Fatal(err)
	}
	a, ref := artifact(module(1000))
	if err := c.Put(a, nil, 1<<20); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, strings.TrimPrefix(digestOf(a.Module), "sha256:")+".wasm")
	if err := os.WriteFile(path, append([]byte{1}, a.Module[1:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ref); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a damaged module: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the damaged module is still there: %v", err)
	}
	if err := c.Put(a, nil, 1<<20); err != nil {
		t.Fatal(err)
	}
	got, err := c.Get(ref)
	want(t, "after the damage", got, a.Module, err)

	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = OpenCache(dir, tick)
	wantError(t, "a folder for all", err, "others can reach it, want 0700")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	_, err = OpenCache(link, tick)
	wantError(t, "a link", err, "is neither a folder nor a file")
}

// FuzzModuleLayer: no manifest names a layer that is too large, or a file outside of the cache.
func FuzzModuleLayer(f *testing.F) {
	f.Add([]byte(`{"layers":[{"mediaType":"application/wasm","digest":"sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","size":10}]}`))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		layer, err := moduleLayer(manifest)
		if err == nil && (layer.Size < 0 || layer.Size > MaxModule || len(layer.Digest.Encoded()) != 64 || strings.ContainsAny(layer.Digest.Encoded(), "./")) {
			t.Errorf("%q: %+v", manifest, layer)
		}
	})
}
