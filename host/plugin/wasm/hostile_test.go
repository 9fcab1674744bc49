package wasm

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// wat assembles text format.
func wat(t testing.TB, text string) []byte {
	t.Helper()
	return testenv.WAT(t, text, "--no-check")
}

// hostileWAT returns a module of the conformance kit that misbehaves for port 666.
func hostileWAT(t testing.TB, name string) string {
	t.Helper()
	for _, m := range hosts.Hostile() {
		if m.Name == name {
			return m.Text
		}
	}
	t.Fatalf("no hostile module %q", name)
	return ""
}

// goodWAT returns a module that keeps the shares, with machine code of more than a page.
func goodWAT(t testing.TB) []byte {
	text := hosts.Guest("good")
	end := strings.LastIndex(text, ")")
	return wat(t, text[:end]+"(func (param i64) (result i64) (local.get 0)"+strings.Repeat(" (i64.mul (local.get 0))", 2000)+"))")
}

// checkGood calls p with an ordinary request and checks the response.
func checkGood(t testing.TB, p *Plugin, now int64) {
	t.Helper()
	req := SampleRequest(7)
	req.Now = now
	for i := range req.Endpoints {
		req.Endpoints[i].Share = uint32(i * 3)
	}
	var resp abi.Response
	resp.Reset(len(req.Endpoints))
	if err := p.Decide(req, &resp); err != nil {
		t.Fatalf("a good request: %v", err)
	}
	for i, a := range resp.Results {
		if a.Value != uint32(i*3) || a.ResetAfterMS != abi.NeverReset {
			t.Fatalf("endpoint %d got %+v", i, a)
		}
	}
}

func TestHostileModulesFailWithinBoundsAndNameTheReason(t *testing.T) {
	testenv.RequireProgram(t, "wat2wasm", "wabt")
	ctx := context.Background()
	var logged bytes.Buffer
	h := newHost(t, Options{
		Missing: map[string]string{
			"connections": "it has no such table", "outcomes": "it has no such table", "podLabels": "it has no Pods",
		},
		Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	good, err := h.Load(ctx, "good", goodWAT(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	modules := hosts.Hostile()
	if len(modules) < 80 {
		t.Fatalf("%d hostile modules", len(modules))
	}
	for _, m := range modules {
		t.Run(m.Name, func(t *testing.T) {
			logged.Reset()
			expect := regexp.MustCompile(m.Error)
			if m.Error == "" {
				t.Fatal("no line with the expected error")
			}
			p, err := h.Load(ctx, "evil", wat(t, m.Text), []byte(m.Settings))
			if m.AtLoad {
				if err == nil {
					p.Close()
					t.Fatal("loaded, want an error")
				}
				if !expect.MatchString(err.Error()) {
					t.Fatalf("error %q does not match %q", err, m.Error)
				}
				checkGood(t, good, sampleNow)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			checkGood(t, p, sampleNow)
			req := SampleRequest(3)
			req.PortNumber = 666
			var resp abi.Response
			resp.Reset(3)
			err = p.Decide(req, &resp)
			if err == nil {
				t.Fatal("it answered")
			}
			if !expect.MatchString(err.Error()) {
				t.Fatalf("error %q does not match %q", err, m.Error)
			}
			s := p.Stats()
			if s.LastFuel == 0 || s.LastFuel > 20_060_000 {
				t.Errorf("it used %d of fuel", s.LastFuel)
			}
			if s.Failures != 1 || s.MemoryBytes != 0 {
				t.Errorf("stats after it: %+v", s)
			}
			if logged.Len() > 32<<10 {
				t.Errorf("it logged %d bytes", logged.Len())
			}
			checkGood(t, p, sampleNow)
			if s := p.Stats(); s.Instances != 2 {
				t.Errorf("%d instances, want a fresh one after the failure", s.Instances)
			}
			checkGood(t, good, sampleNow)
		})
	}
}
