package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitInVain is a command that does not end with its context.
func waitInVain(context.Context) int {
	fmt.Println("started")
	time.Sleep(time.Hour) // nothing happens
	return 0
}

func TestSIGTERMEndsACommandThatDoesNotReturn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Stderr = []string{"stuck"}, &said // see TestMain
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "started\n" {
		t.Fatal(line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(said.String(), "cmd/sluice.waitInVain(") {
		t.Errorf("exit code %d, said\n%s", code, &said)
	}
}
