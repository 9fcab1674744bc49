package rules

import (
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// version is raised whenever the meaning of the sets or the rules changes; a table of another version is replaced.
const version = 2

// tableName is the name of both families' tables. A table that takes the place of another is filled under handoverName
// first; see handover.
const (
	tableName    = "sluice"
	handoverName = "sluice-handover"
)

// tableComment is what tells our own tables; nft prints it.
var tableComment = "managed by sluice, ruleset version " + strconv.Itoa(version)

// field is a part of a set's key or data: nft's number of its type and its length. In a key each is padded to 4 bytes.
type field struct {
	typ   uint32
	bytes int
}

var (
	ipv4Field   = field{7, 4}
	ipv6Field   = field{8, 16}
	protoField  = field{12, 1}
	portField   = field{13, 2}
	slotField   = field{4, 4} // an integer in host order, as numgen makes it
	markField   = field{19, 4}
	idField     = field{23, 4} // the type of meta priority
	ifnameField = field{41, 16}
)

func padded(f []field) (n int) {
	for _, f := range f {
		n += nfnl.Align(f.bytes)
	}
	return n
}

// typeOf is the number that nft gives a concatenation: 6 bits a part.
func typeOf(f []field) (t uint32) {
	for _, f := range f {
		t = t<<6 | f.typ
	}
	return t
}

// set is a named set or map of one table, and what is about to change in it.
type set struct {
	name     string
	key      []field
	data     []field // of a map
	flags    uint32
	size     uint32
	userdata []byte

	exists     bool
	dels, adds nfnl.ElementList
}

// side tells frontends at an address from NodePorts, which are looked up without one.
type side uint8

const (
	byAddress side = iota
	byNodePort
	sides
)

// Lanes: the pool for everyone, and the one for sources from outside.
const (
	inside = iota
	outside
	lanes
)

// maxClass: pools of up to 1<<maxClass slots.
const maxClass = 16

// A pool's kind is its class when slots are drawn at random, and maxClass+1 and on when they are chosen by hash: those
// have tables of at least 1<<minHash slots, so that a change of members moves few clients.
const (
	minHash = 10
	kinds   = maxClass + 1 + maxClass - minHash + 1
)

// classOf is the class of a kind.
func classOf(kind int) (class int, hashed bool) {
	if kind <= maxClass {
		return kind, false
	}
	return kind - (maxClass + 1) + minHash, true
}

// class of a pool of n > 0 slots: the n with which 1<<n slots hold it.
func class(n int) int { return bits.Len(uint(n - 1)) }

// laneSets lead a frontend to its slots or its verdict.
type laneSets struct {
	totals   [kinds]*set // by kind of pool: first those drawn from at random, then those by hash
	rejected *set
	dropped  *set
	slots    *set
	sticky   map[int]*set // frontends whose clients stay, by list: to their owner's id

	// Of a companion, in the place of totals and slots.
	balanced *set
	fwmarks  *set // to the mark that tells the pool
}

// sideSets are the sets keyed by frontend.
type sideSets struct {
	frontends *set
	guarded   *set // frontends with source ranges
	ranges    *set
	masq      [4]*set // by plan.Masquerade; none for Never
	split     *set    // frontends with a pool for sources from outside
	lanes     [lanes]laneSets
	affine    map[time.Duration]*set // frontends whose clients are noted, by time-out: to their owner's id
}

// schema is every set of a table. Those marked as lazy are made, with the rules that use them, when first needed.
type schema struct {
	family    model.Family
	companion *Companion // nil: everything is held here
	addr      field
	sides     [sides]sideSets

	clusterIPs    *set // addresses with a ClusterIP frontend
	externalIPs   *set // addresses with other frontends
	serviceCIDRs  *set
	podSources    *set
	podInterfaces *set
	unmasqueraded *set // sources that MasqueradeOutside spares
	nodePortAddrs *set
	mark          *set // only to be read: the mark bit in use
	hairpin       *set
	linkAddrs     *set         // of a companion: addresses that are the node's for the sake of IPVS
	members       map[int]*set // by list: owner's id and member
	affinity      map[int]*set // by list: client and owner's id, to the member

	byName map[string]*set
}

// affinitySize bounds the table of clients; when it is full, new clients go without.
const affinitySize = 65536

func newSchema(f model.Family, c *Companion) *schema {
	s := &schema{family: f, companion: c, addr: ipv4Field, byName: map[string]*set{}, members: map[int]*set{}, affinity: map[int]*set{}}
	if f == model.IPv6 {
		s.addr = ipv6Field
	}
	for i := range sides {
		s.sides[i] = s.newSide(i)
	}
	interval := uint32(unix.NFT_SET_INTERVAL)
	s.clusterIPs = s.add("cluster_ips", s.addr)
	s.externalIPs = s.add("external_ips", s.addr)
	s.serviceCIDRs = s.add("service_cidrs", s.addr).flag(interval)
	s.podSources = s.add("pod_sources", s.addr).flag(interval)
	s.podInterfaces = s.add("pod_interfaces", ifnameField).flag(interval).hostOrder()
	s.unmasqueraded = s.add("unmasqueraded", s.addr).flag(interval)
	s.nodePortAddrs = s.add("nodeport_addrs", s.addr)
	s.mark = s.add("masquerade_bit", markField).hostOrder()
	s.hairpin = s.add("hairpin", s.addr, s.addr)
	if s.companion != nil {
		s.linkAddrs = s.add("link_addrs", s.addr)
	}
	return s
}

func (s *schema) newSide(i side) sideSets {
	p, name, key := prefix(i, inside), "frontends", []field{s.addr, protoField, portField}
	if i == byNodePort {
		name, key = "nodeports", key[1:]
	}
	ss := sideSets{affine: map[time.Duration]*set{}}
	ss.frontends = s.add(name, key...)
	ss.guarded = s.add(p+"guarded", key...)
	ss.ranges = s.add(p+"source_ranges", with(key, s.addr)...).flag(unix.NFT_SET_INTERVAL | nftSetConcat)
	ss.masq[plan.MasqueradeOutside] = s.add(p+"masq_outside", key...)
	ss.masq[plan.MasqueradeAlways] = s.add(p+"masq_always", key...)
	ss.masq[plan.MasqueradeFromNode] = s.add(p+"masq_from_node", key...)
	ss.split = s.add(p+"split", key...)
	for l := range lanes {
		p := prefix(i, l)
		ls := &ss.lanes[l]
		ls.sticky = map[int]*set{}
		for c := range ls.totals {
			if s.companion == nil {
				ls.totals[c] = s.add(p+totalName(c), key...)
			}
		}
		ls.rejected = s.add(p+"rejected", key...)
		ls.dropped = s.add(p+"dropped", key...)
		if s.companion == nil {
			ls.slots = s.add(p+"slots", with(key, slotField)...).mapTo(s.addr, portField)
			ls.slots.userdata = slotsUserdata(s.family, i)
		}
	}
	if s.companion != nil {
		s.companionSide(i, &ss)
	}
	return ss
}

func totalName(kind int) string {
	if c, hashed := classOf(kind); hashed {
		return "hashed_" + strconv.Itoa(1<<c)
	}
	return "total_" + strconv.Itoa(1<<kind)
}

func with(key []field, more ...field) []field { return append(append([]field(nil), key...), more...) }

func (s *schema) add(name string, key ...field) *set {
	n := &set{name: name, key: key}
	s.byName[name] = n
	return n
}

func (n *set) mapTo(data ...field) *set {
	n.data = data
	n.flags |= unix.NFT_SET_MAP
	return n
}

func (n *set) flag(f uint32) *set {
	n.flags |= f
	return n
}

// hostOrder tells nft that keys are numbers of this machine's byte order.
func (n *set) hostOrder() *set {
	n.userdata = keyByteOrder(1)
	return n
}

// hostData tells the same of a map's data.
func (n *set) hostData() *set {
	n.userdata = append(keyByteOrder(0), tlv32(nil, udDataByteOrder, 1)...)
	return n
}

// affinePrefix begins the names of the maps of one time-out each, in milliseconds: affine_10800000ms.
const affinePrefix = "affine_"

func (s *schema) affineOf(i side, timeout time.Duration) *set {
	n := s.sides[i].affine[timeout]
	if n == nil {
		name := prefix(i, inside) + affinePrefix + strconv.FormatInt(timeout.Milliseconds(), 10) + "ms"
		n = s.add(name, s.sides[i].frontends.key...).mapTo(idField).hostData()
		s.sides[i].affine[timeout] = n
	}
	return n
}

func (s *schema) stickyOf(i side, lane, list int) *set {
	n := s.sides[i].lanes[lane].sticky[list]
	if n == nil {
		n = s.add(prefix(i, lane)+"sticky_"+strconv.Itoa(list), s.sides[i].frontends.key...).mapTo(idField).hostData()
		s.sides[i].lanes[lane].sticky[list] = n
	}
	return n
}

func (s *schema) membersOf(list int) *set {
	n := s.members[list]
	if n == nil {
		n = s.add("members_"+strconv.Itoa(list), idField, s.addr, portField)
		s.members[list] = n
	}
	return n
}

func (s *schema) affinityOf(list int) *set {
	n := s.affinity[list]
	if n == nil {
		n = s.add("affinity_"+strconv.Itoa(list), s.addr, idField).
			mapTo(s.addr, portField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT)
		n.size = affinitySize
		s.affinity[list] = n
	}
	return n
}

// hasAffinity tells whether anything of it was ever needed.
func (s *schema) hasAffinity() bool {
	for _, n := range s.affinity {
		if n.exists {
			return true
		}
	}
	return false
}

// find gives the set of a name that the kernel has, nil when this version has none such.
func (s *schema) find(name string) *set {
	if n := s.byName[name]; n != nil {
		return n
	}
	base, digits, ok := cutNumber(strings.TrimSuffix(name, "ms"))
	if !ok {
		return nil
	}
	var n *set
	switch base {
	case "members_":
		n = s.membersOf(digits)
	case "affinity_":
		n = s.affinityOf(digits)
	}
	for i := range sides {
		if base == prefix(i, inside)+affinePrefix && digits > 0 {
			n = s.affineOf(i, time.Duration(digits)*time.Millisecond)
		}
		for l := range lanes {
			if base == prefix(i, l)+"sticky_" {
				n = s.stickyOf(i, l, digits)
			}
		}
	}
	if n == nil || n.name != name {
		return nil
	}
	return n
}

// cutNumber takes the number off the end of a name.
func cutNumber(name string) (base string, n int, ok bool) {
	base = strings.TrimRight(name, "0123456789")
	n, err := strconv.Atoi(name[len(base):])
	return base, n, err == nil
}

// base is what every table has from the start; a rule that names one of them negated could not be left out.
func (s *schema) base() []*set {
	return []*set{s.sides[byAddress].frontends, s.externalIPs, s.mark}
}
