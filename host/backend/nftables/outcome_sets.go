package nftables

import (
	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
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
