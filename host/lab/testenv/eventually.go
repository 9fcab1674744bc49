package testenv

import (
	"testing"
	"time"
)

// patience is how long Eventually and Succeeds wait: machines that run tests are busy.
const patience = 3 * time.Minute

// Eventually waits for a condition, and fails the test if that does not come true. report, if not nil, says how it is then.
func Eventually(t testing.TB, what string, condition func() bool, report ...func() string) {
	t.Helper()
	Within(t, patience, what, condition, report...)
}

// Succeeds waits until f returns no error, and fails the test with the last one.
func Succeeds(t testing.TB, what string, f func() error) {
	t.Helper()
	var err error
	Eventually(t, what, func() bool { err = f(); return err == nil }, func() string { return err.Error() })
}

// Within is Eventually with another patience.
func Within(t testing.TB, d time.Duration, what string, condition func() bool, report ...func() string) {
	t.Helper()
	end, pause := time.Now().Add(d), time.Millisecond
	for !condition() {
		if time.Now().Before(end) {
			time.Sleep(pause)
			pause = min(2*pause, 16*time.Millisecond) // what is soon is seen soon, and what takes long has the processor
			continue
		}
		for _, f := range report {
			what += "; " + f()
		}
		t.Fatalf("not within %s: %s", d, what)
	}
}

// Always checks that a condition holds for d, and fails the test if not. report is as for Eventually.
func Always(t testing.TB, d time.Duration, what string, condition func() bool, report ...func() string) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if condition() {
			continue
		}
		for _, f := range report {
			what += "; " + f()
		}
		t.Fatalf("not for %s: %s", d, what)
	}
}
