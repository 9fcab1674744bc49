package rules

import (
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
)

// grace is the time until no packet is evaluated with rules from before a transaction. It is closed when that is over; nil is over.
//
// A packet keeps the rules that it began with, but each of its lookups sees the newest elements: during a frontend's move to a set
// that its rules do not use, it would find the frontend in no set and be dropped. So rules are committed first, and a transaction
// that moves a frontend to sets of theirs waits. Others do not. Elements that are only added affect no frontend that exists: a
// packet to a new frontend may be dropped, as before it existed.
type grace chan struct{}

// addTo adds it to a list, or nil if it is over.
func (g grace) addTo(list []grace) []grace {
	if g != nil {
		select {
		case <-g:
			g = nil
		default:
		}
	}
	if slices.Contains(list, g) {
		return list
	}
	return append(list, g)
}

// gracePeriods waits for grace periods, in a goroutine of its own. Those that begin meanwhile end together.
type gracePeriods struct {
	mu      sync.Mutex
	begun   []grace
	running bool
}

func (p *gracePeriods) begin(g grace) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = append(p.begun, g)
	if !p.running {
		p.running = true
		go p.run()
	}
}

func (p *gracePeriods) run() {
	for list := p.take(); len(list) > 0; list = p.take() {
		RCUBarrier()
		for _, g := range list {
			close(g)
		}
	}
}

func (p *gracePeriods) take() []grace {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.begun
	p.begun, p.running = nil, len(list) > 0
	return list
}

// nextGrace returns the grace period of the rules that are to be written.
func (t *table) nextGrace() grace {
	if t.grace == nil && t.forwards() {
		t.grace = make(grace)
	}
	return t.grace
}

// rulesCommitted begins the grace period of the rules that were written.
func (t *table) rulesCommitted() {
	if t.grace != nil {
		t.gracePeriods.begin(t.grace)
		t.grace = nil
	}
}

// endMove ends the elements that belong together. If they leave a set for one where only newer rules look, the transaction has to wait.
func (x *tx) endMove() {
	for _, g := range x.enters {
		if g != nil && slices.ContainsFunc(x.leaves, func(left grace) bool { return left != g }) {
			x.awaited = append(x.awaited, g)
		}
	}
	x.leaves, x.enters = x.leaves[:0], x.enters[:0]
}

// awaitRules commits new rules that the transaction has to wait for, and waits.
func (x *tx) awaitRules() error {
	x.endMove()
	if len(x.awaited) == 0 {
		return nil
	}
	if x.t.rulesDirty {
		out := nfnl.NewBatch(x.t.conn)
		if err := x.writeRules(out); err != nil {
			return err
		}
		x.t.stats.messages += out.Count
		err := out.Commit()
		x.t.rulesCommitted()
		if err != nil {
			return err
		}
	}
	for _, g := range x.awaited {
		<-g
	}
	x.t.stats.waits++
	x.awaited = x.awaited[:0]
	return nil
}
