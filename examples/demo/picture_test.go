package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPictureOfADrain(t *testing.T) {
	p := &picture{began: time.Now().Add(-10 * time.Second), draining: "catalog-a1", peers: map[string]bool{"catalog-a2": true, "catalog-a3": true}}
	p.add(result{counts: map[string]int{"catalog-a1": 100, "catalog-a2": 90, "catalog-a3": 110}, total: 300, took: time.Second})
	p.add(result{counts: map[string]int{"catalog-a2": 100, "catalog-a3": 100, "catalog-b1": 60, "catalog-c1": 40}, total: 300, took: time.Second})
	text := strings.Join(p.lines(false), "\n")
	for _, want := range []string{"catalog-a1", "each other endpoint in zone-a", "other zones together", "33.3 %", "0.0 %"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if got := p.samples[1].shares; got[0] != 0 || got[1] < .333 || got[1] > .334 || got[2] < .333 || got[2] > .334 {
		t.Errorf("shares %v", got)
	}
	file := filepath.Join(t.TempDir(), "drain.svg")
	if err := p.write(file); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not XML: %v", err)
		}
	}
	for _, want := range []string{"catalog-a1", "other zones together"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the file lacks %q", want)
		}
	}
}
