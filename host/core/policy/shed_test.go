package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestSameAnswerIsTheSameShed: a shed begins when an answer changes, not with each call, and it survives failures and a restart.
func TestSameAnswerIsTheSameShed(t *testing.T) {
	permille, fails := uint16(0), false
	b := newFixture(&fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		if fails {
			return failDecide(req, resp)
		}
		resp.RequeueAfter = time.Second
		resp.Results[1].ShedPermille = permille
		return favorFirst(1)(req, resp)
	}})
	b.set(3, 0)
	expect := func(what string, want Shed) {
		t.Helper()
		b.now = b.now.Add(2 * time.Second)
		d, _ := b.decide()
		if got := d.Sheds; want == (Shed{}) && got != nil || want != (Shed{}) && !slices.Equal(got, []Shed{{}, want, {}}) {
			t.Errorf("%s: sheds %v, want %v", what, got, want)
		}
	}
	begun := func() int64 { return b.now.Add(2 * time.Second).UnixMilli() }
	expect("no shed", Shed{})
	permille = 200
	first := Shed{begun(), 200}
	expect("a shed begins", first)
	expect("the same answer", first)
	fails = true
	expect("a failure", first)
	fails = false
	expect("the same answer after a failure", first)
	b.restart(t)
	expect("the same answer after a restart", first)
	permille = 300
	second := Shed{begun(), 300}
	expect("another answer", second)
	permille = 0
	expect("the end", Shed{})
	permille = 300
	expect("again", Shed{begun(), 300})
}

func TestLargestShedOfAChainApplies(t *testing.T) {
	shed := func(first, second uint16) func(*abi.Request, *abi.Response) error {
		return func(req *abi.Request, resp *abi.Response) error {
			resp.Results[0].ShedPermille, resp.Results[1].ShedPermille = first, second
			return favorFirst(1)(req, resp)
		}
	}
	b := newFixture(&fakePlugin{decide: shed(100, 900)}, &fakePlugin{decide: shed(700, 0)})
	b.set(2, 0)
	at := b.now.UnixMilli()
	if d, _ := b.decide(); !slices.Equal(d.Sheds, []Shed{{at, 700}, {at, 900}}) {
		t.Errorf("sheds %v", d.Sheds)
	}
}
