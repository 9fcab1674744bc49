package statuspage

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestRequestsOfOtherSitesAreRefused(t *testing.T) {
	h := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Services") }))
	for _, c := range []struct {
		name, method, host string
		header             map[string]string
		want               int
	}{
		{"curl", "GET", "127.0.0.1:10251", nil, 200},
		{"an address of IPv6", "GET", "[::1]:10251", nil, 200},
		{"a forwarded port", "GET", "localhost:8080", nil, 200},
		{"without a port", "GET", "LocalHost", nil, 200},
		{"typed into a browser", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		{"the page's own script", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:10251"}, 200},
		{"a link of another site", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		{"DNS rebinding", "GET", "attacker.example:10251", map[string]string{"Sec-Fetch-Site": "same-origin"}, 421},
		{"a name that begins like an address", "GET", "127.0.0.1.attacker.example", nil, 421},
		{"a user in the host", "GET", "localhost@attacker.example", nil, 421},
		{"no host", "GET", "", nil, 421},
		{"a script of another site", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty", "Origin": "https://attacker.example"}, 403},
		{"an old browser's script of another site", "GET", "127.0.0.1:10251", map[string]string{"Origin": "https://attacker.example"}, 403},
		{"a sandboxed frame", "GET", "127.0.0.1:10251", map[string]string{"Origin": "null"}, 403},
		{"another port of the host", "GET", "localhost:10251", map[string]string{"Origin": "http://localhost:8080"}, 403},
		{"an image in another site", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403},
		{"a frame in another site", "GET", "127.0.0.1:10251", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403},
		{"another port's script", "GET", "localhost:10251", map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, 403},
		{"a write", "POST", "127.0.0.1:10251", nil, 405},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.Host = c.host
		for k, v := range c.header {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", c.name, w.Code, c.want)
		}
		for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Cross-Origin-Resource-Policy", "Cache-Control"} {
			if w.Header().Get(name) == "" {
				t.Errorf("%s: no %s", c.name, name)
			}
		}
	}
}
