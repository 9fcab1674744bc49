package ipvs

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestModulesAreLoadedWithTheHostsModprobe: this program stands in for modprobe in another root directory, as no test may load
// modules.
func TestModulesAreLoadedWithTheHostsModprobe(t *testing.T) {
	program, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if program.Section(".interp") != nil {
		testenv.Require(t, errors.New("this test is linked dynamically, and the other root has no libraries: build it with CGO_ENABLED=0, as make does"))
	}
	root, path := t.TempDir(), "/sbin/modprobe"
	if b, err := os.ReadFile("/proc/sys/kernel/modprobe"); err == nil {
		path = strings.TrimSpace(string(b))
	}
	if err := modprobe(root, "ip_vs_test"); err == nil || !strings.HasPrefix(err.Error(), "modprobe ip_vs_test: ") {
		t.Errorf("without modprobe: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	to, err := os.OpenFile(filepath.Join(root, path), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, self)
	if cerr := to.Close(); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	err = modprobe(root, "ip_vs_test")
	if want := "modprobe ip_vs_test: FATAL: Module ip_vs_test not found in directory /lib/modules/x"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
