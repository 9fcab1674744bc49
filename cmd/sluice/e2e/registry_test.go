package e2e

import (
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestRegistryLeadsElsewhere: a registry at a public address redirects to, and names as token services, others of this node,
// which are listed as hosts without TLS. Those that are public are asked, without the registry's credentials; the others are not.
func TestRegistryLeadsElsewhere(t *testing.T) {
	lab, err := testnet.New(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for _, a := range []string{"192.0.2.10", "169.254.169.254", "100.100.100.200", "10.99.0.1"} {
		if err := lab.Node.AddAddr("lo", netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	serve := func(at string, h http.HandlerFunc) {
		t.Helper()
		s := httptest.NewUnstartedServer(h)
		if err := lab.Node.Do(func() (err error) {
			s.Listener.Close()
			s.Listener, err = net.Listen("tcp", at)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(s.Close)
	}
	asked := make(chan string, 100)
	others := map[string]string{
		"192.0.2.10:7778": "", "127.0.0.1:7777": "127.0.0.1 is a loopback address", "10.99.0.1:7777": "10.99.0.1 is a private address",
		"169.254.169.254:80": "metadata service", "100.100.100.200:80": "metadata service",
	}
	for at := range others {
		serve(at, func(w http.ResponseWriter, r *http.Request) { asked <- at + " " + r.Header.Get("Authorization") })
	}
	const registry, password = "192.0.2.10:5000", "REGISTRYPASSWORD"
	serve(registry, func(w http.ResponseWriter, r *http.Request) {
		kind, at, _ := strings.Cut(strings.SplitN(r.URL.Path, "/", 4)[2], "-")
		port := at[strings.LastIndexByte(at, '-')+1:]
		to := "http://" + strings.TrimSuffix(at, "-"+port) + ":" + port + "/x"
		if kind == "token" {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="s"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="s"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	})
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"auths": {"`+registry+`": {"auth": "`+base64.StdEncoding.EncodeToString([]byte("user:"+password))+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for at, problem := range others {
		for _, kind := range []string{"redirect", "token"} {
			image := registry + "/" + kind + "-" + strings.ReplaceAll(at, ":", "-") + "/p@sha256:" + strings.Repeat("0", 64)
			list := registry + "," + strings.TrimSuffix(at, ":80")
			out, err := lab.Node.Run("", program, "plugin", "pull", image, "--docker-config", config, "--plain-http", list+","+at, "--file", filepath.Join(t.TempDir(), "p.wasm"))
			if err == nil {
				t.Fatalf("%s: %s", image, out)
			}
			var got []string
			for len(asked) > 0 {
				got = append(got, <-asked)
			}
			switch {
			case problem != "" && len(got) > 0:
				t.Errorf("%s: asked %q", image, got)
			case problem != "" && !strings.Contains(out, problem) && !strings.Contains(out, "private, unspecified"):
				t.Errorf("%s: %v: %s", image, err, out)
			case problem == "" && len(got) == 0:
				t.Errorf("%s: not asked: %s", image, out)
			case problem == "" && kind == "redirect" && got[0] != at+" ":
				t.Errorf("%s: asked %q", image, got)
			}
		}
	}
}
