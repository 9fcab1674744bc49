package ipvs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
)

// captureLog returns what the backend logs from now on.
func captureLog(b *Backend) *bytes.Buffer {
	var out bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&out, nil))
	return &out
}

func TestSysctlsChangedByAnotherProcessAreResetWithAWarning(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	logged := captureLog(b)
	p := web(t, 1)
	d.apply(b, p, nil)
	calls := map[string]func() error{
		"Drifted": func() error { _, err := b.Drifted(context.Background()); return err },
		"Apply":   func() error { _, err := b.Apply(context.Background(), p, nil); return err },
	}
	for name, call := range calls {
		for _, s := range Sysctls(b.o) {
			logged.Reset()
			d.sysctls[s.Name] = 0
			if err := call(); err != nil {
				t.Fatal(err)
			}
			if d.sysctls[s.Name] != s.Want || !strings.Contains(logged.String(), "level=WARN") || !strings.Contains(logged.String(), s.Name) {
				t.Errorf("%s: %s is %d, logged %q", name, s.Name, d.sysctls[s.Name], logged.String())
			}
			if logged.Reset(); call() != nil || logged.Len() > 0 {
				t.Errorf("%s: %s: logged again: %q", name, s.Name, logged.String())
			}
		}
	}
}

func TestOnlyRequiredSysctlsThatCannotBeSetAreErrors(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	logged := captureLog(b)
	p := web(t, 1)
	d.apply(b, p, nil)
	d.sysctls["net.ipv4.vs.expire_nodest_conn"] = -1
	for range 3 {
		if drifted, err := b.Drifted(context.Background()); drifted || err != nil {
			t.Errorf("drifted %v, %v", drifted, err)
		}
	}
	if n := strings.Count(logged.String(), "expire_nodest_conn"); n != 1 {
		t.Errorf("logged %d times: %s", n, logged.String())
	}
	d.sysctls["net.ipv4.vs.conntrack"] = -1
	if drifted, err := b.Drifted(context.Background()); !drifted || err != nil {
		t.Errorf("drifted %v, %v", drifted, err)
	}
	if _, err := b.Apply(context.Background(), p, nil); err == nil || !strings.Contains(err.Error(), "net.ipv4.vs.conntrack") || !strings.Contains(err.Error(), initOnlyRemedy) {
		t.Errorf("apply: %v", err)
	}
	delete(d.sysctls, "net.ipv4.vs.conntrack")
	d.apply(b, p, nil)
}

func TestASysctlChangedByAnotherProcessIsReset(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	const path = "/proc/sys/net/ipv4/vs/conntrack"
	d.mustRun("sh", "-c", "echo 0 > "+path)
	if _, err := b.Drifted(context.Background()); err != nil {
		t.Fatal(err)
	}
	if now := strings.TrimSpace(d.mustRun("cat", path)); now != "1" {
		t.Errorf("it is %s", now)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
}
