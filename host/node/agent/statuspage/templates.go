package statuspage

import (
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/util/printable"
)

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"text": printable.Escape, "percent": percent, "bar": bar, "stamp": stamp,
	"serviceURL": serviceURL, "until": until, "took": took, "part": part, "count": count, "joined": func(list []string) string { return strings.Join(list, " → ") },
	"lower": strings.ToLower, "add": func(a, b int) int { return a + b }, "deref": func(n *uint32) uint32 { return *n },
	"short": func(s string) string { return s[:min(len(s), 12)] },
}).ParseFS(markup, "*.html.tmpl"))

// percent formats a share from 0 to 1.
func percent(share float64) string {
	switch {
	case share == 0:
		return "0 %"
	case share < 0.001:
		return "< 0.1 %"
	case share == 1:
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// bar draws a share from 0 to 1 without a style attribute, which the Content-Security-Policy forbids. The share is beside it as
// text.
func bar(share float64, class string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg class="bar %s" aria-hidden="true" focusable="false"><rect width="%.2f%%" height="100%%"/></svg>`, //nolint:gosec // no text from outside
		template.HTMLEscapeString(class), 100*max(0, min(share, 1))))
}

// part returns n of total as a share.
func part(n *uint32, total uint32) float64 {
	if n == nil || total == 0 {
		return 0
	}
	return float64(*n) / float64(total)
}

// stamp formats a time in UTC.
func stamp(t time.Time) template.HTML {
	t = t.UTC()
	return template.HTML(`<time datetime="` + t.Format(time.RFC3339) + `">` + t.Format("2006-01-02 15:04:05Z") + "</time>") //nolint:gosec // no text from outside
}

// until says how long after now a time is, in whole seconds.
func until(t *time.Time, now time.Time) string {
	d := t.Sub(now).Round(time.Second)
	if d <= 0 {
		return "now"
	}
	return "in " + d.String()
}

// took formats a short duration.
func took(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return d.Round(10 * time.Microsecond).String()
}

// count formats a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// serviceURL returns the URL of the page of a Service, NAMESPACE/NAME.
func serviceURL(name string) template.URL {
	namespace, name, _ := strings.Cut(name, "/")
	return template.URL("/service?" + url.Values{"namespace": {namespace}, "name": {name}}.Encode()) //nolint:gosec // encoded
}
