package realcluster

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// ask runs a command at the other end of a connection.
func ask(r remote, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	here, there := net.Pipe()
	go serveCommand(newFrames(there), "secret")
	return r.ask(here, stdin, stdout, stderr)
}

func TestCommandInAGuestHasStreamsAndAnExitCode(t *testing.T) {
	big := strings.Repeat("0123456789", 100_000)
	for _, c := range []struct {
		name, script, stdin, stdout, stderr string
		code                                int
	}{
		{"both outputs", "echo out; echo err >&2; exit 7", "", "out\n", "err\n", 7},
		{"input and output of a megabyte", "cat", big, big, "", 0},
		{"input is not read", "exit 0", big, "", "", 0},
		{"signal", "kill -9 $$", "", "", "", 137},
		{"a child keeps the output", "sleep 1000 & echo $!", "", "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := remote{Token: "secret", Args: []string{"sh", "-c", c.script}}
			var out, errs bytes.Buffer
			code, err := ask(r, strings.NewReader(c.stdin), &out, &errs)
			if pid, perr := strconv.Atoi(strings.TrimSpace(out.String())); perr == nil && c.stdout == "" {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				out.Reset()
			}
			if err != nil || code != c.code || out.String() != c.stdout || errs.String() != c.stderr {
				t.Errorf("%d, %v, %d bytes, %q", code, err, out.Len(), errs.String())
			}
		})
	}
	r := remote{Token: "secret", Args: []string{"no-such-program"}}
	var errs bytes.Buffer
	if code, err := ask(r, strings.NewReader(""), &errs, &errs); code != 127 || err != nil || !strings.Contains(errs.String(), "no-such-program") {
		t.Errorf("%d, %v, %q", code, err, &errs)
	}
}

func TestGuestRunsNothingWithoutTheToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for _, token := range []string{"", "Secret", "secret2"} {
		if _, err := ask(remote{Token: token, Args: []string{"touch", file}}, strings.NewReader(""), os.Stdout, os.Stderr); err == nil {
			t.Errorf("token %q: no error", token)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command has run")
	}
}

func TestCommandEndsWithItsCaller(t *testing.T) {
	r := remote{Token: "secret", Args: []string{"sh", "-c", "echo $$; exec sleep 1000"}}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	pids := make(chan int, 1)
	// Its output fails, so the caller ends.
	code, err := ask(r, in, writer(func(p []byte) (int, error) {
		pid, _ := strconv.Atoi(strings.TrimSpace(string(p)))
		pids <- pid
		return 0, os.ErrClosed
	}), out)
	if err == nil {
		t.Fatalf("it has ended by itself: %d", code)
	}
	out.Close()
	var pid int
	select {
	case pid = <-pids:
	default:
		t.Fatalf("it has not run: %v", err)
	}
	testenv.Eventually(t, "the command ends with its caller", func() bool { return syscall.Kill(pid, 0) != nil })
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
