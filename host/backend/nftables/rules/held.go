package rules

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// held is all elements of one frontend, as the kernel has them or is to have them. Nothing of it is decoded further,
// so that whatever state the kernel is in can be told, and brought to the one that is wanted.
type held struct {
	listed  bool
	comment string // "shop/web:http ClusterIP": its owner and kind
	masq    uint8  // bits by plan.Masquerade
	guarded bool
	split   bool
	affine  []affine       // one, when the kernel has what was last written
	ranges  []netip.Prefix // sorted
	lanes   [lanes]pool
}

// slots is how many there are; nil has none.
func (h *held) slots() (n int) {
	if h != nil {
		for l := range h.lanes {
			n += h.lanes[l].slots.len()
		}
	}
	return n
}

// pool is what a lane has of a frontend.
type pool struct {
	sets  uint32 // bits: a kind of pool, rejected, dropped
	mark  uint32 // of a companion: tells the pool; 0: none
	slots packed

	sticky []sticky // one at most, as above
}

// affine is for how long the clients of a frontend are noted, and under which id of its owner.
type affine struct {
	timeout time.Duration
	id      uint32
}

// sticky is the list of members to which the clients of a lane may stick.
type sticky struct {
	list int
	id   uint32
}

const (
	rejectedBit = 1 << kinds
	droppedBit  = 1 << (kinds + 1)
	balancedBit = 1 << (kinds + 2) // of a companion
)

// lower gives the elements of a frontend. before is what there is of it now: slots stay where they can.
func lower(f *plan.Frontend, before *held) (*held, error) {
	return lowerWith(f, func(p *plan.Pool, l int) (pool, error) { return lowerPool(f, p, before.lanes[l].slots) })
}

func lowerWith(f *plan.Frontend, lowerPool func(p *plan.Pool, lane int) (pool, error)) (*held, error) {
	h := &held{listed: true, comment: f.Owner.String() + " " + f.Kind.String()}
	if f.Balance == plan.SourceHash {
		h.comment += " " + f.Balance.String()
	}
	if len(h.comment) > maxComment {
		return nil, fmt.Errorf("nftables: %s: the name is longer than the %d bytes of a comment", f.Owner, maxComment)
	}
	if f.Masquerade != plan.MasqueradeNever {
		h.masq = 1 << f.Masquerade
	}
	h.guarded, h.ranges = f.SourceRanges != nil, f.SourceRanges
	var err error
	if h.lanes[inside], err = lowerPool(&f.Pool, inside); err != nil {
		return nil, fmt.Errorf("nftables: %s %s: %w", f.Owner, f.Key, err)
	}
	if f.Outside != nil {
		h.split = true
		if h.lanes[outside], err = lowerPool(f.Outside, outside); err != nil {
			return nil, fmt.Errorf("nftables: %s %s: outside: %w", f.Owner, f.Key, err)
		}
	}
	return h, nil
}

func lowerPool(f *plan.Frontend, p *plan.Pool, before packed) (pool, error) {
	for _, m := range p.Endpoints {
		if m.Addr.Addr().Is4() != (f.Key.Family() == model.IPv4) {
			return pool{}, fmt.Errorf("member %s: not %s", m.Addr, f.Key.Family())
		}
	}
	switch total := p.Total(); {
	case p.Verdict == plan.Drop:
		return pool{sets: droppedBit}, nil
	case p.Verdict == plan.Reject || total == 0:
		return pool{sets: rejectedBit}, nil
	case total > 1<<maxClass:
		return pool{}, fmt.Errorf("the weights sum up to %d, more than the %d slots of a pool", total, 1<<maxClass)
	case f.Balance == plan.SourceHash:
		members, c := fill(p.Endpoints, total)
		return pool{sets: 1 << (maxClass + 1 + c - minHash), slots: pack(assign(before.unpack(nil), members, total*(1<<c/total)))}, nil
	default:
		return pool{sets: 1 << class(total), slots: pack(assign(before.unpack(nil), p.Endpoints, total))}, nil
	}
}

// raise is the inverse of lower, as far as the elements are consistent.
func (h *held) raise(k plan.Key) *plan.Frontend {
	f := &plan.Frontend{Key: k, Pool: h.lanes[inside].raise()}
	f.Owner, f.Kind, f.Balance, _ = parseComment(h.comment, k.Protocol)
	for m := plan.MasqueradeOutside; m <= plan.MasqueradeFromNode; m++ {
		if h.masq&(1<<m) != 0 {
			f.Masquerade = m
		}
	}
	if h.guarded {
		f.SourceRanges = append([]netip.Prefix{}, h.ranges...)
	}
	if len(h.affine) > 0 {
		f.Affinity = h.affine[0].timeout
	}
	if h.split {
		o := h.lanes[outside].raise()
		f.Outside = &o
	}
	return f
}

func (p *pool) raise() plan.Pool {
	switch {
	case p.sets&(rejectedBit-1) != 0:
		return plan.Pool{Verdict: plan.Forward, Endpoints: lowest(membersOf(p.slots.unpack(nil)))}
	case p.sets&rejectedBit != 0:
		return plan.Pool{Verdict: plan.Reject}
	case p.sets&droppedBit == 0 && (p.sets&balancedBit != 0 || p.mark != 0):
		return plan.Pool{Verdict: plan.Forward}
	default:
		return plan.Pool{Verdict: plan.Drop}
	}
}

// put notes a slot as read; false for what no slot can be.
func (p *pool) put(n uint32, a netip.AddrPort) bool {
	return n < 1<<maxClass && p.slots.set(int(n), a)
}

// parseComment reads "namespace/name:port Kind", and "source-hash" after it.
func parseComment(s string, proto model.Protocol) (owner model.PortName, kind plan.Kind, balance plan.Balance, ok bool) {
	name, word, ok1 := strings.Cut(s, " ")
	word, how, _ := strings.Cut(word, " ")
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

// owner is what error messages name.
func (h *held) owner() string {
	name, _, _ := strings.Cut(h.comment, " ")
	return name
}
