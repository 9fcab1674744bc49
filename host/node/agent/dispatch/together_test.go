package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// batcher is a policy.Batcher, each call of which takes took.
type batcher struct {
	sleeper
	batches []int // sizes
}

func (p *batcher) DecideAll(calls []*policy.Call) {
	p.batches = append(p.batches, len(calls))
	for _, c := range calls {
		c.Err = p.Decide(&c.Request, &c.Response)
	}
}

// TestCallsOfABatcherAreMadeTogether: more and more of them, up to a bound, as long as all take less than a millisecond;
// namespaces take turns in them, and calls of another revision are not among them.
func TestCallsOfABatcherAreMadeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p, next := &batcher{sleeper: sleeper{took: time.Microsecond}}, &batcher{}
		var calls []*policy.Call
		for i := range 300 {
			of := p
			if i == 299 {
				of = next
			}
			calls = append(calls, call(of, "p", fmt.Sprint(i%3), fmt.Sprint("s", i), 1))
		}
		if got := b.call(time.Second, calls...); len(got) != len(calls) {
			t.Fatalf("%d answers", len(got))
		}
		if len(p.batches) == 0 || slices.Max(p.batches) != maxTogether || len(p.called()) != 299 || !slices.Equal(next.called(), []string{"s299"}) {
			t.Fatalf("batches of %d, %d calls, of the next revision %d", p.batches, len(p.called()), len(next.called()))
		}
		for i, name := range p.called() { // Within a namespace, s0, s3, s6 … come in their order, and no namespace is ahead.
			if name != calls[i].Request.Service {
				t.Fatalf("call %d is for %s, want %s", i, name, calls[i].Request.Service)
			}
		}
	})
}

// TestCallsThatTakeLongAreMadeOneByOne: an answer does not wait for many others.
func TestCallsThatTakeLongAreMadeOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &batcher{sleeper: sleeper{took: time.Microsecond}}
		fill := func(n int) (calls []*policy.Call) {
			for i := range n {
				calls = append(calls, call(p, "p", "a", fmt.Sprint("s", i), 1))
			}
			return calls
		}
		b.call(time.Second, fill(maxNamespaceCalls)...)
		p.set(2*fast, nil)
		p.batches = nil
		b.call(time.Second, fill(maxNamespaceCalls)...)
		synctest.Wait()
		for len(p.called()) < 2*maxNamespaceCalls {
			<-b.Ready()
			b.call(0)
		}
		if n := len(p.called()); n != 2*maxNamespaceCalls {
			t.Fatalf("%d calls", n)
		}
		if len(p.batches) == 0 || slices.Max(p.batches[1:]) > maxTogether/2 || p.batches[len(p.batches)-1] > 2 {
			t.Fatalf("batches of %d", p.batches)
		}
	})
}

// lazy is a policy.Batcher that makes two calls at a time.
type lazy struct{ batcher }

func (p *lazy) DecideAll(calls []*policy.Call) {
	n := min(2, len(calls))
	p.batcher.DecideAll(calls[:n])
	for _, c := range calls[n:] {
		c.Err = policy.ErrUnasked
	}
}

// TestCallsThatABatcherHasNotMadeComeNext: in their order, before those of their namespace that came later, and all have one
// answer.
func TestCallsThatABatcherHasNotMadeComeNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, 0, 1)
		p := &lazy{batcher{sleeper: sleeper{took: time.Microsecond}}}
		var calls []*policy.Call
		for i := range maxNamespaceCalls {
			calls = append(calls, call(p, "p", "a", fmt.Sprint("s", i), 1))
		}
		answers := b.call(time.Second, calls...)
		if len(answers) != len(calls) || !slices.IsSortedFunc(p.called(), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }) {
			t.Fatalf("%d answers; called for %v", len(answers), p.called())
		}
		for _, c := range answers {
			if c.Err != nil {
				t.Errorf("%s: %v", c.Request.Service, c.Err)
			}
		}
	})
}
