package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
)

// transport sends the requests that are made for one registry. The registry says where they go, by redirects and token services:
// they reach public addresses, and those of a kind at which the registry itself is. Addresses are checked when they are dialled,
// after names are resolved.
type transport struct {
	host     string   // of the registry, with its port if that is named
	plain    []string // hosts that are asked without TLS; nil: none, since the registry is not
	o        *Options
	base     *http.Transport
	resolver *net.Resolver // nil: the system's

	mu      sync.Mutex
	proxies []string // addresses that the environment names: they may be anywhere
	reached []place  // where the registry is
}

func newTransport(host string, plain bool, o *Options, config *tls.Config) *transport {
	t := &transport{host: host, o: o}
	if plain {
		t.plain = append([]string{host}, o.PlainHTTP...)
	}
	t.base = &http.Transport{
		Proxy: t.proxyFor, TLSClientConfig: config.Clone(), DialContext: t.dial, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: headerTimeout, MaxResponseHeaderBytes: maxHeader,
		DisableCompression: true, // the size of what is read is that which the manifest says
	}
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	local := isLoopback(t.host) && isLoopback(req.URL.Host)
	switch {
	case req.URL.Scheme == "https" || slices.Contains(t.plain, req.URL.Host) || t.plain != nil && local:
	case t.plain == nil:
		return nil, fmt.Errorf("registry %s uses TLS but redirects to %s, which does not", t.host, req.URL.Host)
	default:
		return nil, fmt.Errorf("registry %s leads to %s without TLS: list that in %s to allow it", t.host, req.URL.Host, t.o.Names.PlainHTTP)
	}
	return t.base.RoundTrip(req)
}

// checkRedirect refuses to leave TLS.
func (t *transport) checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	case req.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https":
		return fmt.Errorf("a redirect to %s without TLS, from %s with it", req.URL.Host, via[len(via)-1].URL.Host)
	}
	return nil
}

// proxyFor returns the proxy of the environment for a request. What a name leads to is then up to the proxy; an address is
// checked here too.
func (t *transport) proxyFor(req *http.Request) (*url.URL, error) {
	u, err := t.o.Proxy(req)
	if u == nil || err != nil {
		return nil, err
	}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		if err := t.check(req.URL.Hostname(), addr); err != nil {
			return nil, err
		}
	}
	port := cmp.Or(u.Port(), map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme], "80")
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := net.JoinHostPort(u.Hostname(), port); !slices.Contains(t.proxies, at) {
		t.proxies = append(t.proxies, at)
	}
	return u, nil
}

// dial connects to host:port, unless it is where the registry may not lead to.
func (t *transport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout, Resolver: t.resolver}
	t.mu.Lock()
	proxy := slices.Contains(t.proxies, address)
	t.mu.Unlock()
	if proxy {
		return d.DialContext(ctx, network, address)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d.Control = func(_, resolved string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		return t.check(host, to.Addr())
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if to, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil && host == hostname(t.host) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if p := placeOf(to.Addr()); !slices.Contains(t.reached, p) {
			t.reached = append(t.reached, p)
		}
	}
	return conn, nil
}

// check returns an error if a host may not be at an address. The registry may be anywhere, but only where it was from its first
// connection on.
func (t *transport) check(host string, at netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := placeOf(at)
	own := host == hostname(t.host)
	switch {
	case p == public, p != metadata && slices.Contains(t.reached, p), p != metadata && own && len(t.reached) == 0:
		return nil
	case own:
		return fmt.Errorf("%s is %s", at, p)
	}
	return fmt.Errorf("registry %s leads to %s: %s is %s", t.host, host, at, p)
}

// hostname returns a host without its port.
func hostname(host string) string { return (&url.URL{Host: host}).Hostname() }
