package testnet

import (
	"os/exec"
	"strings"
	"testing"
)

func TestReexecReportsExitCodeAndSignal(t *testing.T) {
	for _, c := range []struct {
		script, message string
		code            int
	}{
		{"exit 0", "", 0},
		{"exit 7", "", 7},
		{"kill -KILL $$", "was ended by signal 9 (killed)", 128 + 9},
	} {
		var log Log
		cmd := exec.Command("sh", "-c", c.script)
		cmd.Stderr = &log
		code, err := run(cmd)
		if got := log.String(); err != nil || code != c.code || (got == "") != (c.message == "") || !strings.Contains(got, c.message) {
			t.Errorf("%s: %d, %v, %q", c.script, code, err, got)
		}
	}
}
