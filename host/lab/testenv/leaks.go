package testenv

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakTimeout is how long goroutines may take to end: closing an inotify descriptor takes a second on a busy machine, and goleak
// waits for half of it.
const leakTimeout = time.Minute

// VerifyNoLeaks fails the test if goroutines are left, like goleak.VerifyNone.
func VerifyNoLeaks(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := findLeaks(options...); err != nil {
		t.Error(err)
	}
}

// MainWithoutLeaks runs the tests of a package, and fails if goroutines are left, like goleak.VerifyTestMain.
func MainWithoutLeaks(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := findLeaks(); err != nil {
			fmt.Fprintln(os.Stderr, "goleak: errors on successful test run:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func findLeaks(options ...goleak.Option) (err error) {
	for end := time.Now().Add(leakTimeout); ; {
		if err = goleak.Find(options...); err == nil || time.Now().After(end) {
			return err
		}
	}
}
