package realcluster

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestStartSaysThatInotifyInstancesAreUsedUp: a kubelet without them ends again and again.
func TestStartSaysThatInotifyInstancesAreUsedUp(t *testing.T) {
	const inside = "SLUICE_TEST_ROOM"
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestStartSaysThatInotifyInstancesAreUsedUp$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("30"), 0); err != nil {
		t.Fatal(err)
	}
	if err := room(2); err != nil {
		t.Errorf("25 of 30: %v", err)
	}
	if err := room(2); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := room(3); err == nil || !strings.Contains(err.Error(), "needs 33 inotify instances") {
		t.Errorf("33 of 30: %v", err)
	}
}
