package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/load"
)

// TestClientPrintsWhatItsServerAnswered runs the server and both clients as their commands.
func TestClientPrintsWhatItsServerAnswered(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "-listen", "127.0.0.1:0"}, out)
		_ = out.Close()
	}()
	lines := bufio.NewScanner(in)
	lines.Scan()
	at, ok := strings.CutPrefix(lines.Text(), "listening at ")
	if !ok {
		t.Fatalf("the server prints %q", lines.Text())
	}
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"connect", "-rate", "1000", "-count", "5", "-for", "1m"}, {"hold", "-n", "5", "-every", "1ms", "-for", "1s"}} {
		var got bytes.Buffer
		if err := run(t.Context(), append(args, at), &got); err != nil {
			t.Fatal(err)
		}
		var r load.Result
		if err := json.Unmarshal(got.Bytes(), &r); err != nil || bytes.Count(got.Bytes(), []byte("\n")) != 1 {
			t.Fatalf("%s: %v", got.Bytes(), err)
		}
		if r.Connections != 5 || r.Servers[name] != 5 {
			t.Errorf("%v: %s", args, got.Bytes())
		}
	}
	var got bytes.Buffer
	if err := run(t.Context(), []string{"ask", at, "127.0.0.1:1"}, &got); err != nil || got.String() != name+" 127.0.0.1\nrefused\n" {
		t.Errorf("ask: %v, %q", err, &got)
	}
	cancel()
	told := lines.Scan() && strings.HasPrefix(lines.Text(), "told to end at 2")
	go func() { _, _ = io.Copy(io.Discard, in) }()
	if err := <-ended; err != nil || !told {
		t.Errorf("the server, told to end: %v, printed %q", err, lines.Text())
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"rest"}, {"connect"}, {"connect", "-rate", "0", "127.0.0.1:1"}, {"hold", "-n", "x"}, {"serve", "-listen", "nowhere"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
