package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/tck"
)

// TestMain is an adapter of a host that refuses everything, or of one that is none.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "adapter") {
		os.Exit(m.Run())
	}
	if os.Args[1] == "adapter-that-prints" {
		fmt.Println("Welcome!")
		return
	}
	for lines := json.NewDecoder(os.Stdin); ; {
		var c struct{ Op string }
		if lines.Decode(&c) != nil {
			return
		}
		if c.Op == "hello" {
			fmt.Println(`{"host": "nobody 1.0"}`)
		} else {
			fmt.Println(`{"error": "no\u001b[31m"}`)
		}
	}
}

func TestReport(t *testing.T) {
	if _, err := exec.LookPath("wat2wasm"); err != nil {
		t.Skip(err)
	}
	var out, log bytes.Buffer
	if code := run(t.Context(), []string{"-only", "H01,H18", os.Args[0], "adapter"}, &out, &log); code != 1 {
		t.Errorf("exit code %d: %s", code, log.String())
	}
	for _, want := range []string{"host: nobody 1.0\n", "FAIL  H01  MUST", `found: guests/good.wat: load: no\x1b[31m`, "(ABI.md, Exports)", "skip  H02", "skip  H18", "not tried, because of other failures", "0 passed, 1 failed, 0 warnings, 23 skipped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	run(t.Context(), []string{"-json", "-only", "H01", os.Args[0], "adapter"}, &out, &log)
	var report struct {
		Host string
		tck.Report
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || report.Host != "nobody 1.0" || report.Conforms || report.Failed != 1 || len(report.Results) < 20 {
		t.Errorf("%v: %+v", err, report)
	}
}

func TestWhatIsNoHost(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "Usage: checkhost"},
		{[]string{"-x"}, "not defined: -x"},
		{[]string{"/no/such/adapter"}, "no such file"},
		{[]string{"-only", "H01,G01", os.Args[0], "adapter"}, `there is no requirement "G01"`},
		{[]string{os.Args[0], "adapter-that-prints"}, `hello: the answer "Welcome!"`},
	} {
		var out, log bytes.Buffer
		if code := run(t.Context(), c.args, &out, &log); code != 2 || !strings.Contains(log.String(), c.want) {
			t.Errorf("%q: exit code %d, %q, want %q", c.args, code, log.String(), c.want)
		}
	}
}
