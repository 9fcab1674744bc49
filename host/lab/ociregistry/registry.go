// Package ociregistry runs an OCI registry for tests, built from its module into the user's cache, as a process on a loopback
// address.
package ociregistry

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// Media types of the CNCF's layout of WebAssembly artefacts.
const (
	ConfigType = "application/vnd.wasm.config.v0+json"
	ModuleType = "application/wasm"
)

// User and Password are accepted by a registry with users.
const User, Password = "puller", "correct horse"

// passwordHash is bcrypt of Password, with the least cost.
const passwordHash = "$2a$04$iec5uchM.fkjtG9l9/XNs.vizMRlzZlaXEoszf3sc1vgfJh56fwx2"

// Options of a registry.
type Options struct {
	TLS   bool // with a certificate of its own authority, see Registry.CAFile
	Users bool // only User may pull and push
	// Deletes has distribution delete what it is asked to delete.
	Deletes bool
	// Referrers has the registry list referrers by their API: it is that of go-containerregistry, in memory, without TLS and
	// users. Otherwise it is distribution, which does not have the API.
	Referrers bool
	// Within calls a function in the network namespace of the registry, such as testnet.Host.Do; nil: this one.
	Within func(func() error) error
}

// Registry is a process that serves a registry.
type Registry struct {
	Addr   string // host:port on a loopback address
	CAFile string // of the authority that has signed its certificate

	t       testing.TB
	dir     string
	options Options
	cmd     *exec.Cmd
	ended   chan struct{} // the process has
	client  *http.Client
}

// Start starts a registry, and stops it at the end of the test.
func Start(t testing.TB, o Options) *Registry {
	t.Helper()
	if o.Within == nil {
		o.Within = func(f func() error) error { return f() }
	}
	var l net.Listener
	if err := o.Within(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = o.Within(func() error {
			var d net.Dialer
			c, err = d.DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
	r := &Registry{Addr: l.Addr().String(), t: t, dir: t.TempDir(), options: o, client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: dial}}}
	l.Close()
	if o.TLS {
		r.writeCertificate()
	}
	r.Restart()
	t.Cleanup(r.Stop)
	return r
}

// Stop ends the process. What was pushed stays for Restart.
func (r *Registry) Stop() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	<-r.ended
	r.cmd = nil
	r.client.CloseIdleConnections()
}

// Restart starts the process on the same address, and waits until it answers.
func (r *Registry) Restart() {
	r.t.Helper()
	r.Stop()
	config := filepath.Join(r.dir, "config.json") // YAML
	r.write("config.json", r.config())
	cmd := exec.Command(program(r.t, "distribution"), "serve", config)
	if r.options.Referrers {
		cmd = exec.Command(program(r.t, "referrers"), r.Addr)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &out, []string{"OTEL_TRACES_EXPORTER=none"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // Pdeathsig is about the thread, which must not end before the process
		err := r.options.Within(cmd.Start)
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		r.t.Fatal(err)
	}
	r.cmd, r.ended = cmd, ended
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		resp, err := r.client.Get(r.url() + "/v2/")
		if err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(deadline) {
			r.Stop()
			r.t.Fatalf("the registry does not answer: %v\n%s", err, out.Bytes())
		}
	}
}

func (r *Registry) url() string {
	if r.options.TLS {
		return "https://" + r.Addr
	}
	return "http://" + r.Addr
}

func (r *Registry) config() []byte {
	type m = map[string]any
	server := m{"addr": r.Addr, "secret": "for tests"}
	if r.options.TLS {
		server["tls"] = m{"certificate": filepath.Join(r.dir, "tls.crt"), "key": filepath.Join(r.dir, "tls.key")}
	}
	config := m{
		"version": "0.1", "log": m{"level": "warn", "accesslog": m{"disabled": true}},
		"storage": m{"filesystem": m{"rootdirectory": filepath.Join(r.dir, "storage")}, "delete": m{"enabled": r.options.Deletes}}, "http": server,
	}
	if r.options.Users {
		r.write("htpasswd", []byte(User+":"+passwordHash+"\n"))
		config["auth"] = m{"htpasswd": m{"realm": "test", "path": filepath.Join(r.dir, "htpasswd")}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

func (r *Registry) write(name string, text []byte) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// writeCertificate writes the certificate of httptest for 127.0.0.1, which signs itself.
func (r *Registry) writeCertificate() {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	cert := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		r.t.Fatal(err)
	}
	r.write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	r.write("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	r.CAFile = filepath.Join(r.dir, "tls.crt")
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	r.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
}

// Image is what is pushed.
type Image struct {
	Name       string // of the repository
	Tag        string // "" for none
	ConfigType string // media type; "": ConfigType
	ModuleType string // media type; "": ModuleType
	Module     []byte
	Layers     int // how often the module is listed; 0: once
}

// Push pushes an image, and returns its reference.
func (r *Registry) Push(i Image) imageref.Ref {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	repo, err := remote.NewRepository(r.Addr + "/" + i.Name)
	if err != nil {
		r.t.Fatal(err)
	}
	repo.PlainHTTP = !r.options.TLS
	repo.Client = &auth.Client{Client: r.client, Credential: auth.StaticCredential(r.Addr, auth.Credential{Username: User, Password: Password})}
	blob := func(mediaType, otherwise string, data []byte) v1.Descriptor {
		if mediaType == "" {
			mediaType = otherwise
		}
		desc := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if err := repo.Push(ctx, desc, bytes.NewReader(data)); err != nil {
			r.t.Fatalf("push %s: %v", desc.MediaType, err)
		}
		return desc
	}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	m.Config = blob(i.ConfigType, ConfigType, []byte(`{}`))
	layer := blob(i.ModuleType, ModuleType, i.Module)
	for range max(1, i.Layers) {
		m.Layers = append(m.Layers, layer)
	}
	text, err := json.Marshal(m)
	if err != nil {
		r.t.Fatal(err)
	}
	desc := blob(v1.MediaTypeImageManifest, "", text)
	if i.Tag != "" {
		if err := repo.Tag(ctx, desc, i.Tag); err != nil {
			r.t.Fatal(err)
		}
	}
	return imageref.Ref{Registry: r.Addr, Repository: i.Name, Digest: desc.Digest.String()}
}

// Ref returns a reference to an image that no registry has.
func Ref(registry, name string) imageref.Ref {
	return imageref.Ref{Registry: registry, Repository: name, Digest: "sha256:" + strings.Repeat("0", 64)}
}

// DockerConfig returns the text of a docker configuration with the credentials of a registry.
func (r *Registry) DockerConfig(password string) string {
	text, err := json.Marshal(map[string]any{"auths": map[string]any{r.Addr: map[string]string{"username": User, "password": password}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
