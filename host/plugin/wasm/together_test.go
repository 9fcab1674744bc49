package wasm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// callsOf returns calls for a port each.
func callsOf(now int64, ports ...uint16) (calls []*policy.Call) {
	for i, port := range ports {
		c := &policy.Call{Request: *SampleRequest(3)}
		c.Request.PortNumber, c.Request.Now, c.Request.Service = port, now, fmt.Sprint("s", i)
		c.Response.Reset(3)
		calls = append(calls, c)
	}
	return calls
}

func ports(n int, port uint16) []uint16 {
	list := make([]uint16, n)
	for i := range list {
		list[i] = port
	}
	return list
}

// askAll makes calls until all have been asked.
func askAll(p *Plugin, calls []*policy.Call) {
	for left := calls; len(left) > 0; {
		p.DecideAll(left)
		n := 0
		for n < len(left) && !errors.Is(left[n].Err, policy.ErrUnasked) {
			n++
		}
		left = left[n:]
	}
}

// TestCallsTogetherAreAsOneByOne: answers, errors and counters are the same as without messages of several calls, whatever fails
// between.
func TestCallsTogetherAreAsOneByOne(t *testing.T) {
	requireChildren(t)
	limits := DefaultLimits()
	limits.DecideTime = time.Minute // no call is late, however slow the machine
	h := newHost(t, Options{Process: childCommand("plugin"), Limits: limits})
	trap := slow{"", "", "(unreachable)"}.module(t)
	loop := slow{"", "", "(loop $l (br $l)) (unreachable)"}.module(t)
	goes := goGuest(t, "testdata/goguest")
	for _, c := range []struct {
		name    string
		module  []byte
		options LoadOptions
		evil    uint16
	}{
		{"all go well", goes, LoadOptions{}, 80}, {"a trap", trap, LoadOptions{}, evilPort}, {"without fuel", loop, LoadOptions{}, evilPort},
		{"instances of namespaces", goes, LoadOptions{PerNamespace: true}, 80}, {"repeats", goes, LoadOptions{RepeatOneIn: 2}, 80},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, all := loadWith(t, h, c.module, c.options), loadWith(t, h, c.module, c.options)
			random := rand.New(rand.NewPCG(1, 1))
			for round := range 20 {
				var list []uint16
				for range 1 + random.IntN(100) {
					list = append(list, 80)
					if random.IntN(30) == 0 {
						list[len(list)-1] = c.evil
					}
				}
				now := sampleNow + int64(round)*600_000
				want, got := callsOf(now, list...), callsOf(now, list...)
				for i := range list {
					namespace := fmt.Sprint("ns", random.IntN(3))
					want[i].Request.Namespace, got[i].Request.Namespace = namespace, namespace
				}
				for _, c := range want {
					c.Err = one.Decide(&c.Request, &c.Response)
				}
				askAll(all, got)
				for i := range list {
					if fmt.Sprint(want[i].Err) != fmt.Sprint(got[i].Err) || want[i].Err == nil && !reflect.DeepEqual(want[i].Response, got[i].Response) {
						t.Fatalf("round %d, call %d of %d, port %d: %+v, %v, want %+v, %v", round, i, len(list), list[i], got[i].Response, got[i].Err, want[i].Response, want[i].Err)
					}
				}
			}
			if a, b := one.Stats(), all.Stats(); a.Calls != b.Calls || a.Failures != b.Failures || a.Fuel != b.Fuel || a.Instances != b.Instances || a.Repeats != b.Repeats {
				t.Errorf("one by one %+v\ntogether %+v", a, b)
			}
		})
	}
}

// TestGuiltyCallOfAMessageIsFound: of the calls of a message, the one that does not end fails, and the others are asked again.
func TestGuiltyCallOfAMessageIsFound(t *testing.T) {
	requireChildren(t)
	p := openNative(t, []byte{0xeb, 0xfe}) // jumps to itself
	other := load(t, p.host, goodWAT(t), "")
	p.DecideAll(callsOf(sampleNow, 80, 80)) // makes the instance
	list := ports(20, 80)
	const guilty = 8
	list[guilty] = evilPort
	calls := callsOf(sampleNow, list...)
	p.DecideAll(calls)
	for i, c := range calls {
		switch {
		case i < guilty && c.Err != nil:
			t.Errorf("call %d before the guilty one: %v", i, c.Err)
		case i == guilty && !IsLate(c.Err):
			t.Errorf("the guilty call: %v", c.Err)
		case i > guilty && !errors.Is(c.Err, policy.ErrUnasked):
			t.Errorf("call %d after the guilty one: %v", i, c.Err)
		}
	}
	askAll(p, calls[guilty+1:])
	for i, c := range calls[guilty+1:] {
		if c.Err != nil {
			t.Errorf("call %d, asked again: %v", guilty+1+i, c.Err)
		}
	}
	if s := p.Stats(); s.Failures != 1 || s.Late != 1 {
		t.Errorf("%+v", s)
	}
	checkGood(t, other, sampleNow)
}

// TestKilledProcessFailsNoCallOfAMessage: nobody is guilty, so all are asked again.
func TestKilledProcessFailsNoCallOfAMessage(t *testing.T) {
	requireChildren(t)
	p := load(t, newHost(t, Options{Process: childCommand("plugin")}), goGuest(t, "testdata/goguest"), "")
	p.DecideAll(callsOf(later, 80, 80))
	for round := range 5 {
		calls := callsOf(later+int64(round), ports(50, 80)...)
		r := processOf(t, p)
		r.kill(nil)
		<-r.ended
		askAll(p, calls)
		for i, c := range calls {
			if c.Err != nil {
				t.Fatalf("round %d, call %d: %v", round, i, c.Err)
			}
		}
	}
	if s := p.Stats(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSlowCallsOfAMessageDoNotDelayTheOthers: they are left to another time, when it is the turn of others.
func TestSlowCallsOfAMessageDoNotDelayTheOthers(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("plugin"), Limits: Limits{DecideTime: 10 * time.Second}})
	const work = "(local $n i32) (local.set $n (i32.const 3000000)) (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))) (local.get 2)"
	p := load(t, h, slow{"", "", work}.module(t), "")
	p.DecideAll(callsOf(sampleNow, 80, 80))
	calls := callsOf(sampleNow, append(ports(3, evilPort), ports(40, 80)...)...) // a call takes a millisecond and more
	p.DecideAll(calls)
	if calls[0].Err != nil || !errors.Is(calls[len(calls)-1].Err, policy.ErrUnasked) {
		t.Errorf("the first: %v, the last: %v", calls[0].Err, calls[len(calls)-1].Err)
	}
	askAll(p, calls)
	for i, c := range calls {
		if c.Err != nil {
			t.Errorf("call %d: %v", i, c.Err)
		}
	}
}

// TestProcessThatLiesAboutMessagesIsBelievedNothing is TestProcessThatLiesIsBelievedNothing with several calls in each message.
func TestProcessThatLiesAboutMessagesIsBelievedNothing(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("liar"), Limits: Limits{Failures: 1 << 20}})
	var p *Plugin
	for range 100 {
		var err error
		if p, err = h.Open(t.Context(), "liar", goodWAT(t), LoadOptions{}); err == nil {
			break
		}
	}
	if p == nil {
		t.Fatal("no process started")
	}
	good, failed := 0, 0
	for round := range 60 {
		calls := callsOf(sampleNow+int64(round)*400_000, ports(20, 80)...)
		askAll(p, calls)
		for _, c := range calls {
			if c.Err != nil {
				failed++
			} else if good++; len(c.Response.Results) != 3 {
				t.Fatalf("%d results", len(c.Response.Results))
			}
		}
	}
	if good == 0 || failed == 0 {
		t.Errorf("%d answers accepted, %d refused", good, failed)
	}
	if used, limit := h.MemoryInUse(); used < 0 || used > 2*limit {
		t.Errorf("memory %d of %d", used, limit)
	}
}
