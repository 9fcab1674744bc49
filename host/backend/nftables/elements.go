package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// elements is all elements of one frontend, current or wanted. They are not decoded further, so that any state of the
// kernel can be represented and changed into the wanted one.
type elements struct {
	listed       bool
	comment      string // "shop/web:http ClusterIP": its Service port and kind
	masq         uint8  // bits by plan.Masquerade
	sourceRanged bool
	uncommon     bool // of its source ranges, see isUncommon
	split        bool
	retried      bool         // plan.Frontend.RetryRefused
	longLived    bool         // plan.Frontend.LongLived
	groups       []affinityID // at most one if we wrote them, like learn
	learn        []learnChain
	ranges       []netip.Prefix // sorted
	counted      packedSlots    // endpoints whose connections are counted; none if the frontend was read
	entered      packedSlots    // endpoints whose addresses have an entry, see enteredEndpointsOf; likewise
	scopes       [scopes]poolElements
}

// slots returns the number of slots.
func (h *elements) slots() (n int) {
	if h != nil {
		for l := range h.scopes {
			n += h.scopes[l].slots.len()
		}
	}
	return n
}

// poolElements is the elements of one pool of a frontend.
type poolElements struct {
	sets  uint32 // bits: by slot table, and rejectedBit, droppedBit, handedOffBit
	mark  uint32 // of HandOff: identifies the pool; 0: none
	slots packedSlots

	find []findChain // at most one if we wrote them
}

const (
	rejectedBit  = 1 << slotTables
	droppedBit   = 1 << (slotTables + 1)
	handedOffBit = 1 << (slotTables + 2) // of HandOff
)

// maxRanges bounds the source ranges of a frontend, which are written in one transaction when sluice starts:
// serviceLimits.sourceRanges is at most 5,000, and while they change in parts a frontend has old and new ones, and its own
// address.
const maxRanges = 10_100

// encode returns the elements of a frontend. before are its current ones: endpoints keep their slots where possible.
func (s *schema) encode(f *plan.Frontend, before *elements) (*elements, error) {
	h := &elements{listed: true, comment: f.Owner.String() + " " + f.Kind.String()}
	if f.Balance != plan.Random {
		h.comment += " " + f.Balance.String()
	}
	if f.Outcomes {
		h.comment += outcomesWord
	}
	if len(h.comment) > maxComment {
		return nil, fmt.Errorf("nftables: %s: the name exceeds the %d bytes of a comment", f.Owner, maxComment)
	}
	if f.Masquerade != plan.MasqueradeNever {
		h.masq = 1 << f.Masquerade
	}
	h.retried, h.longLived = f.RetryRefused, f.LongLived
	if len(f.SourceRanges) > maxRanges {
		return nil, fmt.Errorf("nftables: %s %s: %d source ranges, more than the %d of a frontend", f.Owner, f.Key, len(f.SourceRanges), maxRanges)
	}
	h.sourceRanged, h.ranges = f.SourceRanges != nil, f.SourceRanges
	h.uncommon = slices.ContainsFunc(f.SourceRanges, func(p netip.Prefix) bool { return isUncommon(s.family, p.Bits()) })
	var err error
	if h.scopes[inside], err = s.balancing.encodePool(f, &f.Pool, inside, before.scopes[inside].slots); err != nil {
		return nil, fmt.Errorf("nftables: %s %s: %w", f.Owner, f.Key, err)
	}
	if f.Outside != nil {
		h.split = true
		if h.scopes[outside], err = s.balancing.encodePool(f, f.Outside, outside, before.scopes[outside].slots); err != nil {
			return nil, fmt.Errorf("nftables: %s %s: outside: %w", f.Owner, f.Key, err)
		}
	}
	return h, nil
}

// decode is the inverse of encode, as far as the elements are consistent.
func (h *elements) decode(k plan.Key) *plan.Frontend {
	f := &plan.Frontend{
		Key: k, Pool: h.scopes[inside].decode(), Outcomes: strings.HasSuffix(h.comment, outcomesWord), RetryRefused: h.retried, LongLived: h.longLived,
	}
	f.Owner, f.Kind, f.Balance, _ = parseComment(h.comment, k.Protocol)
	for m := plan.MasqueradeOutside; m <= plan.MasqueradeFromNode; m++ {
		if h.masq&(1<<m) != 0 {
			f.Masquerade = m
		}
	}
	if h.sourceRanged {
		f.SourceRanges = append([]netip.Prefix{}, h.ranges...)
	}
	if len(h.learn) > 0 {
		f.Affinity = h.learn[0].timeout
	}
	if h.split {
		o := h.scopes[outside].decode()
		f.Outside = &o
	}
	return f
}

func (p *poolElements) decode() plan.Pool {
	switch {
	case p.sets&(rejectedBit-1) != 0:
		return plan.Pool{Verdict: plan.Forward, Endpoints: reduceWeights(endpointsOf(p.slots.unpack()))}
	case p.sets&rejectedBit != 0:
		return plan.Pool{Verdict: plan.Reject}
	case p.sets&droppedBit == 0 && (p.sets&handedOffBit != 0 || p.mark != 0):
		return plan.Pool{Verdict: plan.Forward}
	default:
		return plan.Pool{Verdict: plan.Drop}
	}
}

// putSlot stores a slot that was read. It returns false if there can be no such slot.
func (p *poolElements) putSlot(n uint32, a netip.AddrPort) bool {
	return n < 1<<maxSizeClass && p.slots.set(int(n), a)
}

// outcomesWord ends the comment of a frontend with Outcomes.
const outcomesWord = " outcomes"

// parseComment parses "namespace/name:port Kind", with the balance after it unless that is random, and outcomesWord.
func parseComment(s string, proto model.Protocol) (owner model.PortName, kind plan.Kind, balance plan.Balance, ok bool) {
	name, word, ok1 := strings.Cut(s, " ")
	word, how, _ := strings.Cut(word, " ")
	how, _, _ = strings.Cut(how, " ")
	for b := plan.Random; b <= plan.LeastConnections; b++ {
		if how == b.String() {
			balance = b
		}
	}
	name, port, _ := strings.Cut(name, ":")
	ns, svc, ok2 := strings.Cut(name, "/")
	for k := plan.ClusterIP; k <= plan.NodePort; k++ {
		if k.String() == word {
			owner = model.PortName{Service: model.Name{Namespace: ns, Name: svc}, Port: port, Protocol: proto}
			return owner, k, balance, ok1 && ok2
		}
	}
	return model.PortName{}, 0, 0, false
}

// owner returns the Service port, for errors.
func (h *elements) owner() string {
	name, _, _ := strings.Cut(h.comment, " ")
	return name
}
