package outcomes

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Answers to younger attempts reduce the number of unanswered ones until these attempts are a second old. That is no new failure.
func TestOldFailuresAreNotReportedAgain(t *testing.T) {
	tr, now, c := NewTracker(), time.Unix(1000, 0), Counters{}
	key := model.EndpointKey{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Protocol: model.TCP}
	read := func() (failed bool) {
		now = now.Add(500 * time.Millisecond)
		for _, x := range tr.Update(now, func(yield func(model.EndpointKey, Counters) bool) { yield(key, c) }) {
			failed = failed || x.Failed
		}
		return failed
	}
	read()
	c.Attempts += 4
	failures := 0
	for range 6 {
		if read() {
			failures++
		}
	}
	if o, _, _ := tr.Get(key); failures != 1 || o.TotalUnanswered != 4 {
		t.Fatalf("%d readings with failures, %+v", failures, o)
	}
	for i := range 20 {
		if i%3 == 0 {
			c.Attempts, c.Answered = c.Attempts+1, c.Answered+1
		}
		if o, _, _ := tr.Get(key); read() || o.Unanswered > 0 {
			t.Fatalf("reading %d: a failure of %+v", i, o)
		}
	}
}
