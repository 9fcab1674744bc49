package testenv

import (
	"testing"
	"time"
)

// patience is how long Eventually waits: machines that run tests are busy.
const patience = time.Minute

// Eventually waits for a condition, and fails the test if that does not come true. report, if not nil, says how it is then.
func Eventually(t testing.TB, what string, condition func() bool, report ...func() string) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().Before(end) {
			continue
		}
		for _, f := range report {
			what += "; " + f()
		}
		t.Fatalf("not within %s: %s", patience, what)
	}
}
