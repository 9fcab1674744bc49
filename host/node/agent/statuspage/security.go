package statuspage

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// contentSecurityPolicy lets a page load its own style and script, and ask its own server. Nothing else is loaded or run.
const contentSecurityPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard refuses requests that another site makes a browser send, and tells browsers to keep the answers from other sites.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the status page is read-only", http.StatusMethodNotAllowed)
		case !hostAllowed(r.Host):
			http.Error(w, "the status page answers for localhost and for IP addresses only, so that no other site's name can lead to it", http.StatusMisdirectedRequest)
		case !sameSite(r):
			http.Error(w, "the status page is not read by other sites", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// hostAllowed reports whether a Host header has an IP address or localhost. Another name may be of a site that makes it resolve
// to this node, whose scripts could then read the page (DNS rebinding).
func hostAllowed(host string) bool {
	u, err := url.Parse("http://" + host)
	if err != nil || u.Host != host || u.User != nil {
		return false
	}
	name := u.Hostname()
	if strings.EqualFold(name, "localhost") {
		return true
	}
	_, err = netip.ParseAddr(name)
	return err == nil
}

// sameSite reports whether a request comes from the page itself or its user, not from another site. A browser may follow another
// site's link to the page: the site learns nothing of the answer.
func sameSite(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(origin, "http://"+r.Host) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin": // programs such as curl send none
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}
