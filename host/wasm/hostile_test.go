package wasm

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// wat assembles text format.
func wat(t testing.TB, text string) []byte {
	t.Helper()
	return testenv.WAT(t, text, "--no-check")
}

// hostileWAT reads a file of testdata/hostile. "@N text@" is text, repeated N times. A file that is not a complete module is
// inserted into base.wat: lines that begin with ";; IMPORT" after the imports, the rest at ";; EVIL".
func hostileWAT(t testing.TB, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`@(\d+) ([^@]*)@`).ReplaceAllStringFunc(string(raw), func(s string) string {
		n, body, _ := strings.Cut(strings.Trim(s, "@"), " ")
		count, _ := strconv.Atoi(n)
		return strings.Repeat(body+" ", count)
	})
	if strings.Contains(text, "(module") {
		return text
	}
	base, err := os.ReadFile("testdata/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	var imports strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^;; IMPORT (.*)$`).FindAllStringSubmatch(text, -1) {
		imports.WriteString(m[1] + "\n")
	}
	out := strings.Replace(string(base), ";; EVIL", text, 1)
	return strings.Replace(out, "(module", "(module\n"+imports.String(), 1)
}

// goodWAT returns base.wat with a harmless $evil.
func goodWAT(t testing.TB) []byte {
	base, err := os.ReadFile("testdata/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	return wat(t, strings.Replace(string(base), ";; EVIL",
		"(func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1))
}

// checkGood calls p with an ordinary request and checks the response.
func checkGood(t testing.TB, p *Plugin, now int64) {
	t.Helper()
	req := SampleRequest(7)
	req.Now = now
	for i := range req.Endpoints {
		req.Endpoints[i].Weight = uint32(i * 3)
	}
	var resp abi.Response
	resp.Reset(len(req.Endpoints))
	if err := p.Decide(req, &resp); err != nil {
		t.Fatalf("a good request: %v", err)
	}
	for i, a := range resp.Results {
		if a.Weight != uint16(i*3) || a.ResetAfterMS != abi.NeverReset {
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
		CacheDir: noCache, Log: slog.New(slog.NewTextHandler(&logged, nil)),
	})
	good, err := h.Load(ctx, "good", goodWAT(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	files, err := filepath.Glob("testdata/hostile/*.wat")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d hostile modules: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".wat"), func(t *testing.T) {
			logged.Reset()
			text := hostileWAT(t, file)
			m := regexp.MustCompile(`(?m)^ *;; (load|decide): (.*)$`).FindStringSubmatch(text)
			if m == nil {
				t.Fatal("no line with the expected error")
			}
			when, want := m[1], m[2]
			expect := regexp.MustCompile(want)
			var settings []byte
			if m := regexp.MustCompile(`(?m)^ *;; settings: (.*)$`).FindStringSubmatch(text); m != nil {
				settings = []byte(m[1])
			}
			p, err := h.Load(ctx, "evil", wat(t, text), settings)
			if when == "load" {
				if err == nil {
					p.Close()
					t.Fatal("loaded, want an error")
				}
				if !expect.MatchString(err.Error()) {
					t.Fatalf("error %q does not match %q", err, want)
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
				t.Fatalf("error %q does not match %q", err, want)
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
