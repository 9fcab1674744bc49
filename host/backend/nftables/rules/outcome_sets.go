package rules

import (
	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"golang.org/x/sys/unix"
)

// outcome is what is counted about the connections to an endpoint.
type outcome int

const (
	attempts outcome = iota
	answered
	refused
	outcomes
)

// allOutcomes has the bits of all outcomes.
const allOutcomes = 1<<outcomes - 1

// outcomeSets are the sets of outcomes. All of them exist while a frontend wants outcomes counted, and none otherwise.
type outcomeSets struct {
	// counters are the endpoints whose connections are counted. A lookup that finds one counts the packet.
	counters [outcomes]*set
	// flows are connections whose outcome further packets would count again: UDP flows with a reply, and connections that
	// ICMP refused.
	flows *set
}

// flowsSize bounds outcomeSets.flows: 21,000 new UDP flows per second, which take 8 MB. Beyond it, replies count again.
const flowsSize = 1 << 16

func newOutcomeSets(s *schema) (o outcomeSets) {
	for i, name := range [outcomes]string{"outcome_attempts", "outcome_answered", "outcome_refused"} {
		o.counters[i] = s.addSet(name, s.frontendKey(byAddress)...)
		o.counters[i].counters = true
	}
	o.flows = s.addSet("outcome_flows", s.addr, portField, s.addr, portField, protoField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT)
	o.flows.size, o.flows.gc = flowsSize, replyMemory
	return o
}

func (o *outcomeSets) all() []*set { return append(o.counters[:], o.flows) }

// hasOutcomes reports whether a frontend wants outcomes counted.
func (s *schema) hasOutcomes() bool { return s.outcomes.flows.exists }

// checkOutcomeSets returns a mismatch if some of the sets exist, and others do not.
func (s *schema) checkOutcomeSets() error {
	for _, n := range s.outcomes.all() {
		if n.exists != s.hasOutcomes() {
			return errSchemaMismatch{"it has some of the sets of outcomes only"}
		}
	}
	return nil
}

// needOutcomes requests the sets and the rules that use them.
func (t *table) needOutcomes() {
	for _, s := range t.outcomes.all() {
		t.need(s)
	}
}

// dropOutcomes requests that the rules and sets are deleted, with their elements.
func (t *table) dropOutcomes() {
	for _, s := range t.outcomes.all() {
		if s.exists {
			s.exists, s.count, s.counted = false, 0, false
			t.oldSets = append(t.oldSets, s)
			t.rulesDirty = true
		}
	}
}

// deleteOld writes the messages that delete chains and sets that are no longer wanted.
func (t *table) deleteOld(b *nfnl.Batch) {
	if len(t.oldSets) == 0 {
		return
	}
	for _, name := range outcomeChainNames {
		if _, ok := t.chains[name]; ok {
			b.Message(unix.NFT_MSG_DELCHAIN, 0, t.nfproto, "delete chain", name)
			b.PutString(unix.NFTA_CHAIN_TABLE, t.name)
			b.PutString(unix.NFTA_CHAIN_NAME, name)
			b.End()
			delete(t.chains, name)
		}
	}
	for _, s := range t.oldSets {
		b.Message(unix.NFT_MSG_DELSET, 0, t.nfproto, "delete set", s.name)
		b.PutString(unix.NFTA_SET_TABLE, t.name)
		b.PutString(unix.NFTA_SET_NAME, s.name)
		b.End()
	}
	t.oldSets = nil
}

// putCounters appends to a message that creates a set that each of its elements has a counter.
func putCounters(b *nfnl.Batch, family byte) {
	counter, err := expr.Marshal(family, &expr.Counter{})
	if err != nil {
		panic(err) // two numbers
	}
	at := b.BeginNest(nftaSetExpr)
	b.Buf = append(b.Buf, counter...)
	b.EndNest(at)
}
