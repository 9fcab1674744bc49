package testnet

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestProgramsRunInTheirHostsNamespace(t *testing.T) {
	lab, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	const links = "cat /proc/self/net/dev"
	out, err := lab.Node.Run("", "sh", "-c", links)
	if err != nil || !strings.Contains(out, "v-uplink") {
		t.Errorf("run on the node: %v\n%s", err, out)
	}
	if out, err := lab.World.Run("one\n", "sh", "-c", "cat; echo two >&2; exit 3"); err == nil || out != "one\ntwo\n" {
		t.Errorf("standard input and both outputs: %v\n%s", err, out)
	}
	for _, c := range []struct {
		host *Host
		want bool
	}{{lab.Node, true}, {nil, false}} {
		var log Log
		cmd := exec.Command("sh", "-c", links)
		cmd.Stdout = &log
		p, err := c.host.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil || strings.Contains(log.String(), "v-uplink") != c.want {
			t.Errorf("start: %v\n%s", err, &log)
		}
	}
	if _, err := lab.Node.Start(exec.Command("/no/such/program")); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("a missing program: %v", err)
	}
}

func TestEndSignalsThenKills(t *testing.T) {
	start := func(script string) *Program {
		t.Helper()
		var log Log
		cmd := exec.Command("sh", "-c", script+"; echo ready; while :; do sleep 0.01; done")
		cmd.Stdout = &log
		p, err := (*Host)(nil).Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		testenv.Eventually(t, "the program starts", func() bool { return log.String() == "ready\n" })
		return p
	}
	obedient := start("trap 'exit 0' TERM")
	select {
	case <-obedient.Ended():
		t.Fatal("it has ended")
	default:
	}
	for range 2 { // the second time it has exited
		if err := obedient.End(syscall.SIGTERM, time.Minute); err != nil {
			t.Errorf("an obedient program: %v", err)
		}
	}
	stubborn := start("trap '' TERM")
	if err := stubborn.End(syscall.SIGTERM, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Errorf("a stubborn program: %v", err)
	}
	if err := stubborn.Wait(); err == nil {
		t.Error("Wait returned no error for a killed program")
	}
}
