package printable_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

func TestSecretsAreRedacted(t *testing.T) {
	for text, want := range map[string]string{
		"http://user:SECRET@host/path":                                 "http://user:xxxxx@host/path",
		"http://SECRET@host":                                           "http://xxxxx@host",
		"http://:SECRET@host":                                          "http://:xxxxx@host",
		"http://user:SECRET@SECRET@host:80/":                           "http://user:xxxxx@host:80/",
		"socks5://user:SECRET@[fd00::1]:1080":                          "socks5://user:xxxxx@[fd00::1]:1080",
		"two: http://a:SECRET@b, https://c:SECRET@d":                   "two: http://a:xxxxx@b, https://c:xxxxx@d",
		`parse "http://u:SECRET/SECRET@h": invalid port ":SECRET" x`:   `parse "http://u:xxxxx@h": invalid port xxxxx x`,
		`parse "http://u:SECRET SECRET@h/": net/url: invalid`:          `parse "http://u:xxxxx@h/": net/url: invalid`,
		`parse "http://u:SECRET?SECRET#@h"`:                            `parse "http://u:xxxxx@h"`,
		`invalid proxy address "user:SECRET@proxy:3128": x`:            `invalid proxy address "user:xxxxx@proxy:3128": x`,
		"HTTPS_PROXY=user:SECRET@proxy":                                "HTTPS_PROXY=user:xxxxx@proxy",
		"http://h/x?a=1&access_token=SECRET&b=2":                       "http://h/x?a=1&access_token=xxxxx&b=2",
		"/x?token=SECRET":                                              "/x?token=xxxxx",
		"https://b.s3/?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET": "https://b.s3/?X-Amz-Credential=xxxxx&X-Amz-Signature=xxxxx",
		"https://b/?se=1&sig=SECRET%3D":                                "https://b/?se=1&sig=xxxxx",
		`{"url":"http://h/?a=1\u0026password=SECRET\u0026b=1"}`:        `{"url":"http://h/?a=1\u0026password=xxxxx\u0026b=1"}`,
		"Authorization: Bearer SECRETSECRETSECRET.SECRET":              "Authorization: Bearer xxxxx",
		"authorization: basic U0VDUkVUOlNFQ1JFVA==":                    "authorization: basic xxxxx",
	} {
		got := string(printable.Redact([]byte(text)))
		if got != want || strings.Contains(got, "SECRET") {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		if got := printable.Escape(text); got != want {
			t.Errorf("%s: escaped %s, want %s", text, got, want)
		}
		if again := string(printable.Redact([]byte(want))); again != want {
			t.Errorf("%s: again %s", want, again)
		}
	}
	for _, text := range []string{
		"", "@", "=", "://", "://@", "ghcr.io/acme/p@sha256:0123", "localhost:5000/p:v1@sha256:0123", "spill:v1@sha256:0123", "image https://ghcr.io/v2/acme/p: mail admin@example.com", "ip daddr @services",
		"http://[fd00::1]:80/x@y", "http://host:80/x@y", "http://h/?limit=1&labelSelector=a%3Db", "token=1 secret", "Basic constraints are wrong", "Bearer realm", "a:b c@d", "vmap @a : x@y", `{"a":"b","c":"d@e"}`,
	} {
		if got := string(printable.Redact([]byte(text))); got != text {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// TestSecretsInOtherEncodings: any password, as logs, JSON and HTML have the URL with it.
func TestSecretsInOtherEncodings(t *testing.T) {
	for _, password := range []string{"SECRET", "a@SECRET", "a:SECRET", "a/SECRET", "a?SECRET", "a#SECRET", "a&SECRET", "a+SECRET", `a"SECRET`, "a'SECRET", "a SECRET", "a<SECRET", "a%SECRET", "ä SECRET", "a\\SECRET", strings.Repeat("SECRET", 3000)} {
		u := url.URL{Scheme: "https", User: url.UserPassword("user", password), Host: "host:1", Path: "/x"}
		err := &url.Error{Op: "Get", URL: u.String(), Err: fmt.Errorf("proxyconnect: dial %s", u.String())}
		var text, asJSON, html strings.Builder
		slog.New(slog.NewTextHandler(&text, nil)).Info(err.Error(), "err", err, "url", u.String())
		slog.New(slog.NewJSONHandler(&asJSON, nil)).Info(err.Error(), "err", err, "url", u.String())
		nested, _ := json.Marshal(asJSON.String())
		if err := template.Must(template.New("").Parse(`<a title="{{.}}">{{.}}</a><script>{{.}}</script>`)).Execute(&html, err.Error()); err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]string{"error": err.Error(), "log": text.String(), "JSON": asJSON.String(), "nested JSON": string(nested), "HTML": html.String()} {
			if got := string(printable.Redact([]byte(s))); strings.Contains(got, "SECRET") || !strings.Contains(got, "host:1") {
				t.Errorf("%q, %s: %s", password, what, got)
			}
		}
		var out strings.Builder
		if _, err := io.WriteString(printable.NewWriter(&out), text.String()); err != nil || strings.Contains(out.String(), "SECRET") {
			t.Errorf("%q, written: %s, %v", password, out.String(), err)
		}
	}
}

// TestRedactTakesLinearTime: whatever a plugin logs.
func TestRedactTakesLinearTime(t *testing.T) {
	for _, part := range []string{"@", "a@/", "://", "://a:b@", "=", "?token=", "a:b@c", "Bearer ", "http://a:b/", "\"@", "=@"} {
		text := []byte(strings.Repeat(part, 1<<20/len(part)))
		begin := time.Now()
		printable.Redact(text)
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%q: %s", part, took)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("http://user:pass@host/?token=x", "SECRET")
	// Whatever comes before a URL.
	f.Fuzz(func(t *testing.T, text, password string) {
		u := url.URL{Scheme: "https", User: url.UserPassword("user", password+"SECRET"), Host: "host"}
		if got := printable.Redact([]byte(text + " " + u.String())); bytes.Contains(bytes.TrimPrefix(got, []byte(text)), []byte("SECRET")) {
			t.Errorf("%q after %q: %q", u.String(), text, got)
		}
	})
}
