package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Children returns the processes that this one has started and that have not ended.
func Children(t testing.TB) (pids []int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		var state string
		if _, err := fmt.Sscanf(string(text), "%d", &pid); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(text[strings.LastIndex(string(text), ")")+1:]), "%s %d", &state, &parent); err != nil {
			t.Fatal(err)
		}
		if parent == os.Getpid() && state != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}
