package gctuner

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestProgramPagesAreReleased(t *testing.T) {
	if programKiB(t) == 0 {
		t.Fatal("no resident pages of this program found")
	}
	f, err := os.ReadFile("/proc/self/exe") // nothing that the test needs is out of the page cache
	if err != nil || len(f) == 0 {
		t.Fatal(err)
	}
	before := programKiB(t)
	ReleaseProgram()
	if after := programKiB(t); after > before*9/10 {
		t.Errorf("%d KiB of the program are resident, %d before", after, before)
	}
}

// TestRelocatedPagesAreKept: the dynamic loader, or the program itself, has changed pages of a position-independent executable
// that are read-only afterwards.
func TestRelocatedPagesAreKept(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.Command("go", "build", "-buildmode=pie", "-o", program, "./testdata/program").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil || string(out) != "works\n" {
		t.Errorf("%v: %.500s", err, out)
	}
}

// programKiB returns how much of the program's file is resident and unchanged.
func programKiB(t *testing.T) (n int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ `)
	in := false
	for line := range strings.Lines(string(text)) {
		if header.MatchString(line) {
			in = strings.HasSuffix(line, " "+program+"\n") && !strings.Contains(strings.Fields(line)[1], "w")
		}
		if f := strings.Fields(line); in && f[0] == "Rss:" {
			kib, _ := strconv.Atoi(f[1])
			n += kib
		}
	}
	return n
}
