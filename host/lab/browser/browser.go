// Package browser opens pages in a headless Chromium, for tests.
package browser

import (
	"context"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// timeout bounds a test with a browser: Chromium is slow to start on a loaded machine.
const timeout = 4 * time.Minute

// Open returns the context of a browser, for package chromedp, that ends with the test.
func Open(t *testing.T) context.Context {
	t.Helper()
	testenv.RequireProgram(t, "chromium", "chromium")
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true),
		chromedp.WSURLReadTimeout(2*time.Minute),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}
