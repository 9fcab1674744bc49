package rules

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// version is raised whenever the meaning of the sets or the rules changes; a table of another version is replaced.
const version = 3

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

// lookup tells frontends at an address from NodePorts, which are looked up without one.
type lookup uint8

const (
	byAddress lookup = iota
	byNodePort
	lookups
)

// Lanes: the pool for everyone, and the one for sources from outside.
const (
	inside = iota
	outside
	scopes
)

// scopeSets lead a frontend to its slots or its verdict.
type scopeSets struct {
	rejected     *set
	dropped      *set
	findAffinity map[int]*set // frontends whose clients are looked up, by list: to their affinity group's id

	// Of Slots.
	bySize [slotTables]*set // by slot table: first those for random draws, then those for hashes
	slots  *set

	// Of HandOff.
	handedOff *set
	fwmarks   *set // to the mark that identifies the pool
}

// lookupSets are the sets keyed by frontend.
type lookupSets struct {
	frontends     *set
	sourceRanged  *set // frontends with source ranges
	ranges        *set
	masq          [4]*set // by plan.Masquerade; none for Never
	split         *set    // frontends with a pool for sources from outside
	scopes        [scopes]scopeSets
	learnAffinity map[time.Duration]*set // frontends whose clients are noted, by time-out: to their owner's id
}

// schema is every set of a table. Those marked as lazy are made, with the rules that use them, when first needed.
type schema struct {
	family    model.Family
	balancing Balancing
	addr      field
	lookups   [lookups]lookupSets

	clusterIPs        *set // addresses with a ClusterIP frontend
	externalIPs       *set // addresses with other frontends
	serviceCIDRs      *set
	podSources        *set
	podInterfaces     *set
	unmasqueraded     *set // sources that MasqueradeOutside spares
	nodePortAddrs     *set
	masqueradeBits    *set // only to be read: the mark bit in use
	hairpin           *set
	vipAddrs          *set         // of a companion: addresses that are the node's for the sake of IPVS
	affinityEndpoints map[int]*set // by list: owner's id and member
	affinity          map[int]*set // by list: client and owner's id, to the member

	byName map[string]*set
}

// affinitySize bounds the table of clients; when it is full, new clients go without.
const affinitySize = 65536

func newSchema(f model.Family, b Balancing) *schema {
	s := &schema{family: f, balancing: b, addr: ipv4Field, byName: map[string]*set{}, affinityEndpoints: map[int]*set{}, affinity: map[int]*set{}}
	if f == model.IPv6 {
		s.addr = ipv6Field
	}
	for i := range lookups {
		s.lookups[i] = s.newLookupSets(i)
	}
	interval := uint32(unix.NFT_SET_INTERVAL)
	s.clusterIPs = s.addSet("cluster_ips", s.addr)
	s.externalIPs = s.addSet("external_ips", s.addr)
	s.serviceCIDRs = s.addSet("service_cidrs", s.addr).flag(interval)
	s.podSources = s.addSet("pod_sources", s.addr).flag(interval)
	s.podInterfaces = s.addSet("pod_interfaces", ifnameField).flag(interval).hostOrder()
	s.unmasqueraded = s.addSet("unmasqueraded", s.addr).flag(interval)
	s.nodePortAddrs = s.addSet("nodeport_addrs", s.addr)
	s.masqueradeBits = s.addSet("masquerade_bit", markField).hostOrder()
	s.hairpin = s.addSet("hairpin", s.addr, s.addr)
	s.vipAddrs = s.addSet("vip_addrs", s.addr)
	return s
}

// frontendKey is the key of the sets of frontends.
func (s *schema) frontendKey(l lookup) []field {
	if l == byNodePort {
		return []field{protoField, portField}
	}
	return []field{s.addr, protoField, portField}
}

func (s *schema) newLookupSets(l lookup) lookupSets {
	p, name, key := prefix(l, inside), "frontends", s.frontendKey(l)
	if l == byNodePort {
		name = "nodeports"
	}
	ls := lookupSets{learnAffinity: map[time.Duration]*set{}}
	ls.frontends = s.addSet(name, key...)
	ls.sourceRanged = s.addSet(p+"source_ranged", key...)
	ls.ranges = s.addSet(p+"source_ranges", with(key, s.addr)...).flag(unix.NFT_SET_INTERVAL | nftSetConcat)
	ls.masq[plan.MasqueradeOutside] = s.addSet(p+"masq_outside", key...)
	ls.masq[plan.MasqueradeAlways] = s.addSet(p+"masq_always", key...)
	ls.masq[plan.MasqueradeFromNode] = s.addSet(p+"masq_from_node", key...)
	ls.split = s.addSet(p+"split", key...)
	for scope := range scopes {
		p := prefix(l, scope)
		ss := &ls.scopes[scope]
		ss.findAffinity = map[int]*set{}
		ss.rejected = s.addSet(p+"rejected", key...)
		ss.dropped = s.addSet(p+"dropped", key...)
		s.balancing.addSets(s, l, scope, ss)
	}
	return ls
}

func with(key []field, more ...field) []field { return append(append([]field(nil), key...), more...) }

func (s *schema) addSet(name string, key ...field) *set {
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

// learnPrefix begins the names of the maps of one time-out each, in milliseconds: affine_10800000ms.
const learnPrefix = "learn_affinity_"

func (s *schema) learnSet(i lookup, timeout time.Duration) *set {
	n := s.lookups[i].learnAffinity[timeout]
	if n == nil {
		name := prefix(i, inside) + learnPrefix + strconv.FormatInt(timeout.Milliseconds(), 10) + "ms"
		n = s.addSet(name, s.lookups[i].frontends.key...).mapTo(idField).hostData()
		s.lookups[i].learnAffinity[timeout] = n
	}
	return n
}

func (s *schema) findSet(i lookup, lane, list int) *set {
	n := s.lookups[i].scopes[lane].findAffinity[list]
	if n == nil {
		n = s.addSet(prefix(i, lane)+"find_affinity_"+strconv.Itoa(list), s.lookups[i].frontends.key...).mapTo(idField).hostData()
		s.lookups[i].scopes[lane].findAffinity[list] = n
	}
	return n
}

func (s *schema) endpointsSet(list int) *set {
	n := s.affinityEndpoints[list]
	if n == nil {
		n = s.addSet("affinity_endpoints_"+strconv.Itoa(list), idField, s.addr, portField)
		s.affinityEndpoints[list] = n
	}
	return n
}

func (s *schema) affinitySet(list int) *set {
	n := s.affinity[list]
	if n == nil {
		n = s.addSet("affinity_"+strconv.Itoa(list), s.addr, idField).
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
	case "affinity_endpoints_":
		n = s.endpointsSet(digits)
	case "affinity_":
		n = s.affinitySet(digits)
	}
	for i := range lookups {
		if base == prefix(i, inside)+learnPrefix && digits > 0 {
			n = s.learnSet(i, time.Duration(digits)*time.Millisecond)
		}
		for l := range scopes {
			if base == prefix(i, l)+"find_affinity_" {
				n = s.findSet(i, l, digits)
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
	return []*set{s.lookups[byAddress].frontends, s.externalIPs, s.masqueradeBits}
}
