package testenv_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// recorder is a test that records how it ended.
type recorder struct {
	testing.TB
	what string
}

func (t *recorder) Helper()           {}
func (t *recorder) Skip(args ...any)  { t.what = "skip: " + fmt.Sprint(args...) }
func (t *recorder) Fatal(args ...any) { t.what = "fatal: " + fmt.Sprint(args...) }

func TestMissingRequirementSkipsAndFailsInCI(t *testing.T) {
	for _, c := range []struct {
		ci, want string
		ask      func(testing.TB)
	}{
		{"", "", func(t testing.TB) { testenv.Require(t, nil) }},
		{"1", "", func(t testing.TB) { testenv.RequireProgram(t, "go", "golang") }},
		{"", "skip: no cluster", func(t testing.TB) { testenv.Require(t, errors.New("no cluster")) }},
		{"1", "fatal: no cluster", func(t testing.TB) { testenv.Require(t, errors.New("no cluster")) }},
		{"", "skip: nosuchprogram is missing: apt-get install nosuch", func(t testing.TB) { testenv.RequireProgram(t, "nosuchprogram", "nosuch") }},
	} {
		t.Setenv("CI", c.ci)
		got := &recorder{}
		if c.ask(got); got.what != c.want {
			t.Errorf("CI=%s: %q, want %q", c.ci, got.what, c.want)
		}
	}
}
