package registry

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
)

// TestAddressesHaveAPlace: those of ipaddr's table, which endpoints are compared with too, and others.
func TestAddressesHaveAPlace(t *testing.T) {
	cases, err := os.ReadFile("../../util/ipaddr/testdata/addresses")
	if err != nil {
		t.Fatal(err)
	}
	others := "public 192.0.2.10\nprivate 172.31.0.1\nprivate 192.168.1.1\nprivate 100.64.0.1\nprivate fd00::1\nprivate ::ffff:10.0.0.1\nprivate 240.0.0.1\nlink-local fe80::1%lo\nmetadata fe80::a9fe:a9fe%lo\n"
	for line := range strings.Lines(string(cases) + others) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if got := placeOf(netip.MustParseAddr(text)); !strings.Contains(got.String(), kind) {
			t.Errorf("%s is %s, want %s", text, got, kind)
		}
	}
}

// TestRegistryLeadsToItsOwnKindOfAddress: wherever it is, nobody leads to a metadata service.
func TestRegistryLeadsToItsOwnKindOfAddress(t *testing.T) {
	at := map[place]string{public: "192.0.2.1", private: "10.0.0.1", linkLocal: "169.254.7.7", loopback: "127.0.0.1", metadata: "169.254.169.254"}
	for own := range at {
		for to, address := range at {
			g := &transport{host: "registry.test:5000", reached: []place{own}}
			allowed := to == public || to == own && to != metadata
			for _, host := range []string{"registry.test", "elsewhere.test"} {
				if err := g.check(host, netip.MustParseAddr(address)); (err == nil) != allowed {
					t.Errorf("%s, whose registry is at %s, to %s: %v", host, own, to, err)
				}
			}
		}
	}
	first := &transport{host: "registry.test:5000"}
	for p, address := range at {
		if err := first.check("registry.test", netip.MustParseAddr(address)); (err == nil) != (p != metadata) {
			t.Errorf("a registry at %s: %v", p, err)
		}
		if err := first.check("elsewhere.test", netip.MustParseAddr(address)); (err == nil) != (p == public) {
			t.Errorf("before the registry was reached, to %s: %v", p, err)
		}
	}
}

// names answers questions for addresses of names.
func names(t *testing.T, all map[string]string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			q := m.Questions[0]
			if a, err := netip.ParseAddr(all[strings.TrimSuffix(q.Name.String(), ".")]); err == nil && q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: a.As4()}}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// TestNamesAreCheckedWhereTheyLead: at the moment of the connection, so a name that has another address by then leads nowhere.
func TestNamesAreCheckedWhereTheyLead(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	g := newTransport(fmt.Sprintf("registry.test:%d", port), false, &Options{}, nil)
	g.resolver = names(t, map[string]string{"registry.test": "127.0.0.1", "storage.test": "127.0.0.1", "cloud.test": "100.100.100.200"})
	dial := func(host string) error {
		c, err := g.dial(t.Context(), "tcp", fmt.Sprintf("%s:%d", host, port))
		if err == nil {
			c.Close()
		}
		return err
	}
	wantError(t, "before the registry", dial("storage.test"), "leads to storage.test: 127.0.0.1 is a loopback address")
	if err := dial("registry.test"); err != nil {
		t.Error(err)
	}
	if err := dial("storage.test"); err != nil {
		t.Errorf("the registry is there itself: %v", err)
	}
	wantError(t, "a metadata service", dial("cloud.test"), "100.100.100.200 is an address of a cloud's metadata service")
	g.reached = []place{public} // what it was before
	wantError(t, "the registry's name, rebound", dial("registry.test"), "127.0.0.1 is a loopback address")
	wantError(t, "another name", dial("storage.test"), "127.0.0.1 is a loopback address")
}

// leads are the ways in which a registry says where to go.
var leads = map[string]func(w http.ResponseWriter, to string){
	"a redirect": func(w http.ResponseWriter, to string) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusTemporaryRedirect)
	},
	"a token service": func(w http.ResponseWriter, to string) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="s"`)
		w.WriteHeader(http.StatusUnauthorized)
	},
}

// TestRegistryLeadsElsewhere: redirects of manifests, layers and tags, and token services. No packet leaves: the addresses are
// refused before.
func TestRegistryLeadsElsewhere(t *testing.T) {
	for name, lead := range leads {
		for to, text := range map[string]string{
			"http://10.255.255.1/x": "private", "http://169.254.169.254/latest/meta-data": "", "http://[fd00:ec2::254]/x": "", "http://100.100.100.200/": "", "http://168.63.129.16/": "metadata", "http://[::ffff:10.0.0.1]/": "private",
			"http://[fe80::1]/": "link-local", "http://192.0.2.1/": "without TLS", "file:///etc/passwd": "unsupported",
		} {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { lead(w, to) }))
			host, u := strings.TrimPrefix(s.URL, "http://"), to
			if parsed, err := url.Parse(to); err == nil {
				u = parsed.Host
			}
			plain := []string{u}
			if text == "without TLS" {
				plain = nil
			}
			r := ociregistry.Ref(host, "acme/spill")
			_, err := pull(t, Options{Settings: Settings{PlainHTTP: plain}}, r)
			wantError(t, name+" to "+to, err, text)
			s.Close()
		}
	}
}

// TestNothingLeavesTLS: a registry with TLS leads to no host without, even one that is listed.
func TestNothingLeavesTLS(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the registry led away from TLS") }))
	defer plain.Close()
	for name, lead := range leads {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { lead(w, plain.URL) }))
		ca := file(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
		settings := Settings{CAFile: ca, PlainHTTP: []string{strings.TrimPrefix(plain.URL, "http://")}}
		_, err := pull(t, Options{Settings: settings}, ociregistry.Ref(strings.TrimPrefix(s.URL, "https://"), "acme/spill"))
		wantError(t, name, err, "http")
		s.Close()
	}
	_, err := (&transport{host: "registry.test"}).RoundTrip(httptest.NewRequest(http.MethodGet, plain.URL, http.NoBody))
	wantError(t, "any other way", err, "registry registry.test uses TLS but redirects to "+strings.TrimPrefix(plain.URL, "http://")+", which does not")
}

// TestProxyIsNoWayElsewhere: the proxy of the environment may be anywhere; to an address, it is not asked.
func TestProxyIsNoWayElsewhere(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Host)
		http.Redirect(w, r, "http://10.255.255.1/x", http.StatusFound)
	}))
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pull(t, Options{Settings: Settings{PlainHTTP: []string{"registry.invalid", "10.255.255.1"}}, Proxy: http.ProxyURL(address)}, ociregistry.Ref("registry.invalid", "acme/spill"))
	wantError(t, "to a private address", err, "registry registry.invalid leads to 10.255.255.1: 10.255.255.1 is a private address")
	if fmt.Sprint(asked) != "[registry.invalid]" {
		t.Errorf("the proxy was asked for %v", asked)
	}
}
