package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	chrome "github.com/sluice-proxy/sluice/host/lab/browser"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// browser is a headless Chromium.
type browser struct {
	*testing.T
	ctx context.Context
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	return &browser{t, chrome.Open(t)}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

func (b *browser) eval(script string) string {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](script))
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// text returns what the page shows in an element; "": there is none.
func (b *browser) text(selector string) string {
	b.Helper()
	return b.eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// waitFor waits until an element has a text, or, with a "!" before it, has not.
func (b *browser) waitFor(selector, want string) {
	b.Helper()
	text, not := strings.CutPrefix(want, "!")
	got := ""
	testenv.Eventually(b, fmt.Sprintf("%s is %q", selector, want), func() bool {
		got = b.text(selector)
		return strings.Contains(got, text) != not
	}, func() string { return got })
}

// open loads a page until it is there with its style and script, and live.
func (b *browser) open(url string) {
	b.Helper()
	b.openFrom(url, time.Time{})
}

// openFrom is open of a page that has been loading since a time.
func (b *browser) openFrom(url string, since time.Time) {
	b.Helper()
	testenv.Eventually(b, url+" opens", func() bool {
		if time.Since(since) > 30*time.Second && chromedp.Do(b.ctx, chromedp.Navigate(url)) == nil {
			since = time.Now()
		}
		state, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`location.href + " " + document.querySelector("#connection")?.innerText`))
		return err == nil && state == url+" Live"
	})
}

// axeRules are those of WCAG 2.2 to level AA, and good practice.
const axeRules = `{runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}`

// checkAccessibility runs axe-core in the page. Chromium's debugger runs it although the Content-Security-Policy forbids scripts.
func (b *browser) checkAccessibility(axe, what string) {
	b.Helper()
	if axe == "" {
		return
	}
	found, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](axe+`; axe.run(document, `+axeRules+`).then((result) => JSON.stringify(result.violations.map((v) =>
		v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html.slice(0, 200) + " " + n.any.map((a) => a.message).join("; ")).slice(0, 3).join(" | "))))`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatal(err)
	}
	var all []string
	if err := json.Unmarshal([]byte(found), &all); err != nil {
		b.Fatal(err)
	}
	for _, v := range all {
		b.Errorf("%s: %s", what, v)
	}
}

// axeCore returns the script of axe-core that .ci/deps has fetched; "": it has not.
func axeCore(t *testing.T) string {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(user, "sluice", "axe")
	want, err := os.ReadFile("testdata/axe/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	text, err2 := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil || err2 != nil || !bytes.Equal(got, want) {
		t.Logf("accessibility is not checked: axe-core is not in %s: .ci/deps fetches it", dir)
		return ""
	}
	return string(text)
}

// keep writes a picture of the whole page to the folder SLUICE_SCREENSHOTS.
func (b *browser) keep(name string) {
	b.Helper()
	folder := os.Getenv("SLUICE_SCREENSHOTS")
	if folder == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (b *browser) scheme(name string) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	}); err != nil {
		b.Fatal(err)
	}
}

// look checks and keeps a page in both color schemes, and on a phone.
func (b *browser) look(axe, name string) {
	b.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.checkAccessibility(axe, name+", "+scheme)
		b.keep(name + "-" + scheme)
	}
	b.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	if width := b.eval(`String(document.documentElement.scrollWidth)`); width != "390" {
		b.Errorf("%s is %s pixels wide on a phone of 390", name, width)
	}
	b.keep(name + "-phone")
	b.do(chromedp.EmulateViewport(1280, 900))
	b.scheme("light")
}

// TestStatusPageInABrowser loads the page in Chromium, searches, opens a Service, follows a drain to its end, and restarts the
// agent. With SLUICE_SCREENSHOTS set to a folder it keeps pictures there.
func TestStatusPageInABrowser(t *testing.T) {
	testenv.RequireProgram(t, "chromium", "chromium")
	plugin := filepath.Join(testenv.Plugins(t, "plugins/lifecycle"), "lifecycle.wasm")
	r := newRig(t, pageConfig+`
plugins: [{name: lifecycle, file: `+plugin+`}]
policies:
- {name: gentle, plugins: [{name: lifecycle, settings: {drain: {stages: [{percent: 50, duration: 2s}, {percent: 10, duration: 2s}]}}}]}
- {name: trial, plugins: [], shadow: [{name: lifecycle, settings: {drain: {stages: [{percent: 100, duration: 10m}]}}}]}
bindings:
- {selector: {matchExpressions: [{key: app, operator: In, values: [cart, catalog, checkout]}]}, policy: gentle}
- {selector: {matchLabels: {app: payment}}, policy: trial}
`)
	r.opts.Config.PluginCacheDir, r.opts.ConfigFile, r.opts.Reload, r.opts.Version = testenv.PluginCache(t), "", nil, "v0.0.0-test"
	names := []string{"cart", "catalog", "checkout", "payment"}
	for i := range 120 {
		names = append(names, fmt.Sprintf("tenant-%03d", i))
	}
	all := shop(names...)
	url, stop := startPage(r, all)
	getPage(t, url, 200)
	b, axe := openBrowser(t), axeCore(t)

	b.do(chromedp.EmulateViewport(1280, 900))
	b.open(url)
	b.waitFor("#live .scope", "1 to 50 of 124 Services")
	b.look(axe, "services")
	b.do(chromedp.SendKeys(chromedp.CSS("#search input[type=search]"), "shop CATA"))
	b.waitFor("#live .scope", "1 Service of 124")
	b.waitFor("#live tbody", "!cart")
	if got := b.eval(`document.activeElement.name`); got != "q" {
		t.Errorf("after a search the focus is on %q", got)
	}

	of := b.eval(`document.querySelector("#live tbody a").href`)
	b.do(chromedp.Click(chromedp.CSS("#live tbody a")))
	b.openFrom(of, time.Now())
	b.waitFor("h1", "shop/catalog")
	b.waitFor("#live", "lifecycle")

	b.open(url + "drains")
	b.waitFor("#live", "Nothing drains")
	draining := strings.Replace(all, "name: catalog-a, namespace: shop}, conditions: {ready: true}}", "name: catalog-a, namespace: shop}, conditions: {ready: false, serving: true, terminating: true}}", 1)
	draining = strings.Replace(draining, "name: payment-a, namespace: shop}, conditions: {ready: true}}", "name: payment-a, namespace: shop}, conditions: {ready: false, serving: true, terminating: true}}", 1)
	r.write("manifests/all.yaml", draining)
	b.waitFor("#live", "shop/catalog")
	b.look(axe, "drains")
	// The focus stays on a link while the parts around it are replaced.
	b.eval(`document.querySelector("#live a").focus(); document.activeElement.href`)
	b.waitFor("#live tbody tr .stage", "Draining")
	if got := b.eval(`document.activeElement.innerText`); got != "shop/catalog" {
		t.Errorf("after an update the focus is on %q", got)
	}
	b.open(url + "service?namespace=shop&name=catalog")
	b.waitFor("#live", "catalog-a")
	b.look(axe, "service")
	b.open(url + "policies")
	b.waitFor("#live", "gentle")
	b.waitFor("#live", "shop/payment")
	b.look(axe, "policies")
	b.open(url + "drains")
	b.waitFor("#live", "shop/catalog")
	r.write("manifests/all.yaml", all)
	b.waitFor("#live", "Nothing drains")

	b.open(url + "activity")
	b.waitFor("#live", "shop/catalog")
	b.look(axe, "activity")
	stop()
	b.waitFor("#connection", "Not connected")
	b.keep("lost")
	r.opts.Config.StatusPageBindAddress = strings.Trim(strings.TrimPrefix(url, "http:"), "/")
	startPage(r, all)
	b.waitFor("#connection", "Live")

	// Without its script the page has the same content.
	for _, page := range []string{"", "drains", "policies", "activity", "service?namespace=shop&name=cart"} {
		if text := getPage(t, url+page, 200); !strings.Contains(text, "<h1>") {
			t.Errorf("%s has no heading:\n%s", page, text)
		}
	}
	console, done := context.WithTimeout(b.ctx, time.Second)
	defer done()
	for m, err := range chromedp.Console(console) {
		if text := fmt.Sprint(m); err == nil && (strings.Contains(text, "Security Policy") || strings.Contains(text, "Uncaught")) {
			t.Errorf("console of the page: %s", text)
		}
	}
}
