package report

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/sluice-proxy/sluice/host/lab/browser"
)

// TestPageInABrowser opens a report in Chromium: no error, tables that sort and filter, colors of both schemes, nothing wider
// than a phone, and a printed page. With SLUICE_SCREENSHOTS set to a folder it keeps pictures there.
func TestPageInABrowser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(html(t, result(30, 12))), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := browser.Open(t)

	do(t, ctx, chromedp.EmulateViewport(1200, 900), chromedp.Navigate("file://"+file), chromedp.WaitVisible(chromedp.CSS("h1")))
	const table = `document.querySelector("table.sortable")`
	first := func() string {
		t.Helper()
		return get(t, ctx, chromedp.Evaluate[string](`[...`+table+`.tBodies[0].rows].filter((row) => !row.hidden)[0].cells[0].textContent`))
	}
	if got := first(); got != "shop/web-0" {
		t.Errorf("first row %q", got)
	}
	const heading chromedp.CSS = `table.sortable th:nth-child(4) button`
	do(t, ctx, chromedp.Click(heading), chromedp.Click(heading))
	if got := first(); got != "shop/web-11" {
		t.Errorf("sorted by divergence, ascending: first row %q", got)
	}
	do(t, ctx, chromedp.SendKeys(chromedp.CSS("input"), "web-7"))
	if got := first(); got != "shop/web-7" {
		t.Errorf("filtered: first row %q", got)
	}
	// A chart has its lines and a tick per axis at least; lines lie within the picture.
	const undrawn = `[...document.querySelectorAll("figure[data-chart]")].filter((figure) => {
		const lines = figure.querySelectorAll("svg[role=img] [style*='--line']"), chart = JSON.parse(figure.dataset.chart);
		const box = figure.querySelector("svg[role=img]").viewBox.baseVal;
		return lines.length < chart.lines.length || figure.querySelectorAll("svg[role=img] text").length < 4 ||
			[...lines].some((line) => { const b = line.getBBox(); return !(b.x >= 0 && b.y >= 0 && b.x + b.width <= box.width && b.y + b.height <= box.height); });
	}).map((figure) => figure.textContent)`
	for _, samples := range []int{30, 1} {
		if samples == 1 {
			if err := os.WriteFile(file, []byte(html(t, result(1, 12))), 0o600); err != nil {
				t.Fatal(err)
			}
			do(t, ctx, chromedp.Navigate("file://"+file), chromedp.WaitVisible(chromedp.CSS("h1")), chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => { d.open = true })`))
			keep(t, "instant.png", get(t, ctx, chromedp.FullScreenshot(100)))
		} else {
			do(t, ctx, chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => { d.open = true })`))
		}
		if got := get(t, ctx, chromedp.Evaluate[[]string](undrawn)); len(got) > 0 {
			t.Errorf("%d samples: charts not drawn, or not within their picture: %q", samples, got)
		}
		if n := get(t, ctx, chromedp.Evaluate[int](`document.querySelectorAll("figure[data-chart]").length`)); n == 0 {
			t.Errorf("%d samples: no chart", samples)
		}
	}

	colors := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		}); err != nil {
			t.Fatal(err)
		}
		colors[get(t, ctx, chromedp.Evaluate[string](`getComputedStyle(document.body).backgroundColor`))] = true
		colors[get(t, ctx, chromedp.Evaluate[string](`getComputedStyle(document.querySelector('svg path[style*="--line1"]')).stroke`))] = true
		keep(t, scheme+".png", get(t, ctx, chromedp.FullScreenshot(100)))
	}
	if len(colors) != 4 {
		t.Errorf("backgrounds and lines of both schemes: %v", colors)
	}

	do(t, ctx, chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	keep(t, "phone.png", get(t, ctx, chromedp.FullScreenshot(100)))
	if width := get(t, ctx, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); width > 390 {
		t.Errorf("the page is %d pixels wide on a phone of 390", width)
	}

	pdf := get(t, ctx, chromedp.PrintToPDF())
	keep(t, "print.pdf", pdf)
	if !strings.HasPrefix(string(pdf), "%PDF-") {
		t.Errorf("the printed page begins with %.20q", pdf)
	}
	// The console repeats what was written before it was opened.
	console, done := context.WithTimeout(ctx, time.Second)
	defer done()
	for m, err := range chromedp.Console(console) {
		if err == nil {
			t.Errorf("console of the page: %s", m)
		}
	}
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

func get[T any](t *testing.T, ctx context.Context, a chromedp.Action[T]) T {
	t.Helper()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// keep writes a test artifact.
func keep(t *testing.T, name string, content []byte) {
	t.Helper()
	if folder := os.Getenv("SLUICE_SCREENSHOTS"); folder != "" {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
