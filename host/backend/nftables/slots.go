package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend/slots"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// Slots balances by rules: a pool has one slot for each unit of weight, and a connection goes to the endpoint of a slot
// that is drawn at random or by a hash of the client's address.
type Slots struct{}

// MaxName is the longest name of a Service, namespace or port in the comment of a frontend: all that Kubernetes allows.
const MaxName = 63

// Caps implements Balancing.
func (Slots) Caps() plan.Caps {
	return plan.Caps{
		Name:     "nftables",
		Ratios:   true,
		MaxTotal: slots.Max,
		Step:     slots.Step,
		Client:   clientOf,
		Balances: []plan.Balance{plan.Random, plan.SourceHash},

		MaxEndpoints: 1 << maxSizeClass, MaxName: MaxName, CoarseAffinity: true, Outcomes: true, LongLived: true,
	}
}

func (Slots) traits() traits {
	return traits{tableComment: tableComment, dispatches: maxDispatches, remembersResets: true}
}

func (Slots) acceptsComment(s string) bool { return s == tableComment }

func (Slots) guardedVIPs() map[netip.Addr]bool { return nil }

func (Slots) addSets(s *schema, l lookup, scope int, ss *scopeSets) {
	p, key := prefix(l, scope), s.frontendKey(l)
	for i := range ss.bySize {
		ss.bySize[i] = s.addSet(p+sizeSetName(i), key...)
	}
	ss.slots = s.addSet(p+"slots", with(key, slotField)...).mapTo(s.addr, portField)
	ss.slots.userdata = slotsUserdata(s.family, l)
}

func (Slots) encodePool(f *plan.Frontend, p *plan.Pool, _ int, before packedSlots) (poolElements, error) {
	for _, e := range p.Endpoints {
		if e.Addr.Addr().Is4() != (f.Key.Family() == model.IPv4) {
			return poolElements{}, fmt.Errorf("endpoint %s: not %s", e.Addr, f.Key.Family())
		}
	}
	switch total := p.Total(); {
	case p.Verdict == plan.Drop:
		return poolElements{sets: droppedBit}, nil
	case p.Verdict == plan.Reject || total == 0:
		return poolElements{sets: rejectedBit}, nil
	case total > 1<<maxSizeClass:
		return poolElements{}, fmt.Errorf("the weights sum up to %d, more than the %d slots of a pool", total, 1<<maxSizeClass)
	case f.Balance == plan.SourceHash:
		list, c := hashedSlots(p)
		return poolElements{sets: 1 << (maxSizeClass + 1 + c - minHashClass), slots: pack(list)}, nil
	default:
		return poolElements{sets: 1 << sizeClass(total), slots: assignSlots(before, p.Endpoints, total)}, nil
	}
}

func (Slots) changePool(x *tx, ss *scopeSets, key []byte, now, want *poolElements) {
	for i := range ss.bySize {
		had, has := now.sets&(1<<i) != 0, want.sets&(1<<i) != 0
		if i <= maxSizeClass && !had && has {
			x.t.preallocate(ss, i)
		}
		x.toggle(ss.bySize[i], key, had, has)
	}
}

// changeEndpoints writes the slots that differ. A slot that changes its endpoint is deleted and added in one transaction.
func (Slots) changeEndpoints(x *tx, ss *scopeSets, key []byte, now, want packedSlots) error {
	var data [20]byte
	for n := range max(now.len(), want.len()) {
		if now.same(want, n) {
			continue
		}
		had, has := now.at(n), want.at(n)
		k := binary.NativeEndian.AppendUint32(key, uint32(n))
		if had.IsValid() {
			x.del(ss.slots, nfnl.Element{Key: k})
		}
		if has.IsValid() {
			x.add(ss.slots, nfnl.Element{Key: k, Data: appendPort(appendAddr(data[:0], has.Addr()), has.Port())})
		}
		if x.full() {
			if err := x.commit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// slotsUserdata encodes: typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : ip daddr . th dport.
// Without it nft prints every slot number as 0, or does not load its own listing.
func slotsUserdata(f model.Family, i lookup) []byte {
	daddr := typeof{7, []uint32{12, 12}} // payload: ip, daddr
	if f == model.IPv6 {
		daddr = typeof{7, []uint32{13, 9}} // ip6, daddr
	}
	proto := typeof{9, []uint32{16}}                      // meta: l4proto
	port := typeof{7, []uint32{11, 2}}                    // payload: th, dport
	slot := typeof{23, []uint32{1, 1 << maxSizeClass, 0}} // numgen: random, modulus, offset
	key := []typeof{daddr, proto, port, slot}
	if i == byNodePort {
		key = key[1:]
	}
	b := keyByteOrder(0)
	b = append(b, tlv32(nil, udDataByteOrder, 0)...)
	b = append(b, concat(udKeyTypeof, key...)...)
	return append(b, concat(udDataTypeof, daddr, port)...)
}

// Caps returns what the tables of mode nftables can represent.
func Caps() plan.Caps { return Slots{}.Caps() }
