package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// recorded returns a recorder with random samples.
func recorded(seed uint64, servers, seconds int) *recorder {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRecorder(time.Second)
	for s := range servers {
		r.names = append(r.names, string(rune('a'+s)))
	}
	for at := range seconds {
		s := sample{at: time.Duration(at) * time.Second, shed: rng.IntN(3)}
		for range min(servers, 1+at) {
			s.open = append(s.open, rng.IntN(200))
		}
		for f := range s.failed {
			s.failed[f] = rng.IntN(3)
			r.total[f] += s.failed[f]
		}
		r.series = append(r.series, s)
	}
	r.mark("<&>")
	return r
}

// The figure is well-formed, and small enough to be checked in. Names are escaped.
func TestChartIsWellFormedAndSmall(t *testing.T) {
	var all []*result
	for i, group := range []string{"a", "a", "b < c", "b < c"} {
		all = append(all, &result{&experiment{group: group, name: `"<&>`, servers: 8}, recorded(uint64(i), 24, 80), 80 * time.Second})
	}
	all = append(all, &result{&experiment{group: "nothing"}, newRecorder(time.Second), 0})
	text := chart(all, "nftables")
	if len(text) > 100<<10 {
		t.Errorf("%d bytes", len(text))
	}
	panels := 0
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "g" {
			panels++
		}
		if e, ok := token.(xml.StartElement); ok {
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s: %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
	if panels != len(all) {
		t.Errorf("%d panels of %d", panels, len(all))
	}
}

func TestBarsHaveAllFailures(t *testing.T) {
	r := recorded(3, 4, 30)
	var sum [failures]int
	for _, b := range r.bars() {
		for f, n := range b {
			sum[f] += n
		}
	}
	if sum != r.total {
		t.Errorf("%v in bars, %v in all", sum, r.total)
	}
}

func TestShareOfNewServersIsThatAtTheEnd(t *testing.T) {
	r := newRecorder(time.Second)
	if r.newShare(1) != 0 || r.most() != 0 {
		t.Error("without a sample")
	}
	r.series = append([]sample{{open: []int{9, 1}}}, slices.Repeat([]sample{{open: []int{3, 5, 4, 0}}, {open: []int{3, 5, 2, 0}}}, endSamples/2)...)
	if got := r.newShare(2); got != 6./22 {
		t.Errorf("share %g, want 6 ÷ 22", got)
	}
	if r.newShare(4) != 0 || r.newShare(7) != 0 {
		t.Error("no server is new")
	}
	if r.most() != 9 {
		t.Errorf("most %d", r.most())
	}
}

func TestCapacityOfAColdServer(t *testing.T) {
	s := server{limit: 100, cold: 10, warmUp: 9 * time.Second}
	for age, want := range map[time.Duration]int{0: 10, time.Second: 20, 4500 * time.Millisecond: 55, 9 * time.Second: 100, time.Hour: 100} {
		if got := s.capacity(age); got != want {
			t.Errorf("after %s: %d, want %d", age, got, want)
		}
	}
}

func TestPromises(t *testing.T) {
	r := newRecorder(time.Second)
	r.marks = []mark{{2 * time.Second, "it acts"}}
	e := &experiment{group: "g", name: "n"}
	if err := (&result{e, r, 0}).check(); err != nil {
		t.Error(err)
	}
	r.total[hung], r.last, r.lastBegan = 3, 20*time.Second, 7*time.Second
	if err := (&result{e.within(5 * time.Second), r, 0}).check(); err != nil {
		t.Error(err)
	}
	balanced := &recorder{series: []sample{{open: []int{6, 4}}}}
	for _, test := range []struct {
		share, most float64
		kept        bool
	}{{0.4, 0.6, true}, {0.39, 0.6, false}, {0.4, 0.5, false}} {
		e := (&experiment{servers: 1, clients: 10}).balances(test.share, test.most)
		if err := (&result{e, balanced, 0}).check(); (err == nil) != test.kept {
			t.Errorf("40 %% to new Pods, 60 %% to one, promised %g and %g: %v", test.share, test.most, err)
		}
	}
	for _, broken := range []*experiment{e.within(4 * time.Second), e.never()} {
		if err := (&result{broken, r, 0}).check(); err == nil || !strings.Contains(err.Error(), "3 of 3 connections failed, the last one 20s after") {
			t.Errorf("got %v", err)
		}
	}
}
