package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// unpack returns all entries of a bundle as one text.
func unpack(t *testing.T, bundle io.Reader) string {
	t.Helper()
	zip, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for entries := tar.NewReader(zip); ; {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("\n== " + h.Name + "\n")
		if _, err := io.Copy(&all, entries); err != nil { //nolint:gosec // bounded by sluice
			t.Fatal(err)
		}
	}
}

// TestSecretsInURLsAreNotShown: of API servers, proxies, registries and what these lead to, in the log, status, explain, config,
// metrics, status page and bundle.
func TestSecretsInURLsAreNotShown(t *testing.T) {
	const secret = "SECRET" // all of them begin so
	n := newNode(t)
	path := func(name string) string { return filepath.Join(n.state, name) }
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	shown := func(what, text string, wanted ...string) {
		t.Helper()
		for i, line := range strings.Split(text, "\n") {
			if at := strings.Index(line, secret); at >= 0 {
				t.Errorf("%s has a secret in line %d: %s", what, i, line[max(0, at-200):min(len(line), at+60)])
			}
		}
		for _, want := range wanted {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not have %s: %.3000s", what, want, text)
			}
		}
	}
	get := func(network, address, resource string) string {
		t.Helper()
		client := http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: func(context.Context, string, string) (c net.Conn, err error) {
			err = n.lab.Node.Do(func() error { c, err = net.Dial(network, address); return err })
			return c, err
		}}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("http://sluice" + resource)
		if err != nil {
			t.Errorf("%s: %v", resource, err)
			return ""
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("%s: %v", resource, err)
		}
		return string(text)
	}
	serve := func(at string, h http.HandlerFunc) {
		t.Helper()
		s := httptest.NewUnstartedServer(h)
		if err := n.lab.Node.Do(func() (err error) {
			s.Listener.Close()
			s.Listener, err = net.Listen("tcp", at)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(s.Close)
	}
	serve("127.0.0.1:5000", func(w http.ResponseWriter, r *http.Request) { // a registry
		switch {
		case strings.Contains(r.URL.Path, "/redirect/"):
			w.Header().Set("Location", "http://user:SECRETlocation@127.0.0.1:1/blob?X-Amz-Credential=SECRETid&X-Amz-Signature=SECRETsignature")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case strings.Contains(r.URL.Path, "/token/"):
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://user:SECRETrealm@127.0.0.1:1/token?access_token=SECRETparameter",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/damaged/"):
			w.Header().Set("Location", "http://user:SECRET/SECRET@127.0.0.1:1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"errors":[{"code":"DENIED","message":"see http://user:SECRETbody@host/?sig=SECRETsig, with Authorization: Bearer SECRETSECRETSECRETSECRET"}]}`)
		}
	})
	digest := "@sha256:" + strings.Repeat("0", 64)
	kinds := []string{"redirect", "token", "damaged", "denied", "proxied"}
	config := "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\nmetricsBindAddress: 127.0.0.1:10249\nstatusPageBindAddress: 127.0.0.1:10260\n" +
		"pluginImages: {plainHTTP: ['127.0.0.1:1', 'registry.invalid:5000'], dockerConfig: docker.json}\nplugins:\n"
	for _, kind := range kinds {
		registry := "127.0.0.1:5000"
		if kind == "proxied" {
			registry = "registry.invalid:5000"
		}
		config += "- {name: " + kind + ", image: '" + registry + "/" + kind + "/p" + digest + "'}\n"
	}
	config += "policies: [{name: p, plugins: [{name: redirect}, {name: token}, {name: damaged}, {name: denied}, {name: proxied}]}]\ndefaultPolicy: p\n"
	write("docker.json", `{"auths": {"127.0.0.1:5000": {"auth": "dXNlcjpTRUNSRVQ="}}}`)
	file := write("sluice.yaml", config)
	t.Setenv("HTTP_PROXY", "http://user:SECRETproxy@127.0.0.1:2")
	t.Setenv("http_proxy", "http://user:SECRETproxy@127.0.0.1:2")

	everything := func(what string, wanted ...string) {
		t.Helper()
		shown(what+", log", n.log.String())
		for _, args := range [][]string{{"status", "--socket", n.socket()}, {"status", "--socket", n.socket(), "-o", "json"}, {"explain", "--socket", n.socket(), "-n", "shop", "web", "-o", "json"}} {
			out, _ := n.sluice(args...)
			shown(what+", "+args[0], out)
		}
		for _, at := range []string{"/status", "/explain?namespace=shop&service=web", "/config", "/log", "/services", "/drains", "/metrics", "/plan"} {
			shown(what+", "+at, get("unix", n.socket(), at))
		}
		for _, at := range []string{":10249/metrics", ":10249/configz", ":10260/", ":10260/service?namespace=shop&name=web"} {
			port, resource, _ := strings.Cut(at, "/")
			shown(what+", "+at, get("tcp", "127.0.0.1"+port, "/"+resource))
		}
		var bundle bytes.Buffer
		cmd := exec.Command(program, "bundle", "--socket", n.socket(), "-f", "-")
		cmd.Stdout = &bundle
		if err := n.lab.Node.Do(cmd.Run); err != nil {
			t.Errorf("bundle: %v", err)
		}
		shown(what+", bundle", unpack(t, &bundle), wanted...)
	}
	n.run("--config", file)
	n.until("all pulls have failed", func() bool {
		last := n.log.String()
		last = last[max(0, strings.LastIndex(last, "loading plugins failed")):]
		return strings.Contains(last, "/proxied/") && !strings.Contains(last, "not pulled yet")
	})
	everything("plugins", "user:xxxxx@", "X-Amz-Signature=xxxxx", "Bearer xxxxx")
	if err := n.process.End(os.Interrupt, timeout); err != nil {
		t.Error(err)
	}

	kubeconfig := func(name, cluster string) string {
		return write(name, "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {"+cluster+"}}]\nusers: [{name: u, user: {token: SECRETtoken}}]\n")
	}
	connect := func(what string, args ...string) {
		t.Helper()
		n.log = &testnet.Log{}
		cmd := exec.Command(program, append([]string{"run", "--node", "n1", "--socket", n.socket(), "--checkpoint", "", "--config", file, "-v", "1"}, args...)...)
		cmd.Stdout, cmd.Stderr = n.log, n.log
		var err error
		if n.process, err = n.lab.Node.Start(cmd); err != nil {
			t.Fatal(err)
		}
		defer n.process.Kill()
		ended := func() bool {
			select {
			case <-n.process.Ended():
				return true
			default:
				return false
			}
		}
		n.until(what, func() bool {
			return ended() || strings.Contains(n.log.String(), " server=")
		})
		if ended() {
			shown(what+", log", n.log.String(), "sluice: ")
			return
		}
		everything(what, "user:xxxxx@")
		_ = n.process.End(os.Interrupt, timeout)
	}
	connect("an API server", "--kubeconfig", kubeconfig("a", "server: 'http://user:SECRETserver@127.0.0.1:3'"))
	connect("an API server by a flag", "--kubeconfig", kubeconfig("b", "server: 'http://127.0.0.1:3'"), "--server", "http://user:SECRETflag@127.0.0.1:3")
	connect("a proxy", "--kubeconfig", kubeconfig("c", "server: 'http://user:SECRETserver@192.0.2.1', proxy-url: 'http://user:SECRETproxy@127.0.0.1:2'"))
	connect("a damaged server", "--kubeconfig", kubeconfig("d", "server: 'http://user:SECRET/SECRET@127.0.0.1'"))
	connect("a damaged proxy", "--kubeconfig", kubeconfig("e", "server: 'http://127.0.0.1:3', proxy-url: 'http://user:SECRET/SECRET@127.0.0.1'"))
	out, err := n.sluice("config", "check", write("bad.yaml", strings.Replace(config, "127.0.0.1:5000/", "http://user:SECRETimage@127.0.0.1:5000/", 1)))
	if shown("config check", out, "a user before the registry"); err == nil {
		t.Error(out)
	}
	out, _ = n.sluice("config", "check", write("bad.yaml", strings.Replace(config, "'127.0.0.1:1'", "'user:SECRETregistry@127.0.0.1:1'", 1)))
	shown("config check", out, "is not a registry")
	out, _ = n.sluice("plugin", "pull", "user:SECRETargument@127.0.0.1:5000/acme/p:v1")
	shown("plugin pull", out, "sluice: ")
}
