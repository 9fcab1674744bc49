package nftables

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// version changes with the meaning of sets or rules. A table of another version is replaced.
const version = 5

// tableName is the name of both families' tables. A table that replaces another is filled under handoverName first: see
// replaceTable.
const (
	tableName    = "sluice"
	handoverName = "sluice-handover"
)

// tableComment identifies our tables.
var tableComment = "managed by sluice, ruleset version " + strconv.Itoa(version)

// Scopes of a pool: inside is for all sources, or, if there is a pool for sources outside the cluster, for the others.
const (
	inside = iota
	outside
	scopes
)

// scopeSets map frontends to slots or a verdict.
type scopeSets struct {
	rejected *set
	dropped  *set
	find     *set // frontends whose clients are looked up: to the findChain

	// Of Slots.
	bySize [slotTables]*set // by slot table: first those for random draws, then those for hashes
	slots  *set

	// Of HandOff.
	handedOff *set
	fwmarks   *set // to the mark that identifies the pool
}

// lookupSets are the sets keyed by frontend.
type lookupSets struct {
	frontends    *set
	sourceRanged *set    // frontends with source ranges
	ranges       []*set  // by the length of the prefix: frontend and first address of a source range
	uncommon     *set    // frontends with ranges of uncommon lengths
	masq         [4]*set // by plan.Masquerade; none for Never
	split        *set    // frontends with a pool for sources outside the cluster
	scopes       [scopes]scopeSets
	retried      *set // frontends whose refused connections are retried
	longLived    *set // frontends whose established connections go by the flowtable, if there is one: see SyncOffload
	groups       *set // frontends with affinity: to the id of their affinity group
	learn        *set // frontends whose clients are recorded: to the learnChain
}

// schema is all sets of a table. A set is created, with the rules that use it, when it is first needed.
type schema struct {
	family    model.Family
	balancing Balancing
	addr      field
	lookups   [lookups]lookupSets

	clusterIPs     *set // addresses with a ClusterIP frontend
	externalIPs    *set // addresses with other frontends
	serviceCIDRs   *set
	podSources     *set
	podInterfaces  *set
	unmasqueraded  *set // sources that MasqueradeOutside excludes
	noMasquerade   *set // endpoints to which connections keep their source
	nodePortAddrs  *set
	localhostAddrs *set // loopback addresses that serve NodePorts over TCP
	masqueradeBits *set // the masquerade bit in use, for readers
	hairpin        *set
	vipAddrs       *set // of HandOff: addresses that the node has only for balancing
	affinity       affinitySets
	outcomes       outcomeSets
	refusing       *set // endpoints that refuse connections: see refusingChains
	resets         *set // connections to reset: see ResetTCP
	retries        *set // connections that were refused once: see retryChains

	byName map[string]*set
}

func newSchema(f model.Family, b Balancing, limits AffinityLimits) *schema {
	s := &schema{family: f, balancing: b, addr: ipv4Field, byName: map[string]*set{}, affinity: newAffinitySets(limits)}
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
	s.noMasquerade = s.addSet("no_masquerade", s.addr).flag(interval)
	s.nodePortAddrs = s.addSet("nodeport_addrs", s.addr)
	s.localhostAddrs = s.addSet("localhost_addrs", s.addr)
	s.masqueradeBits = s.addSet("masquerade_bit", markField).hostOrder()
	s.hairpin = s.addSet("hairpin", s.addr, s.addr)
	s.refusing = s.addSet("refusing", s.addr)
	s.vipAddrs = s.addSet("vip_addrs", s.addr)
	s.outcomes = newOutcomeSets(s)
	s.resets = newResetsSet(s)
	s.retries = newRetriesSet(s)
	return s
}

// frontendKey returns the key of the sets of frontends.
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
	ls := lookupSets{}
	ls.frontends = s.addSet(name, key...)
	ls.sourceRanged = s.addSet(p+"source_ranged", key...)
	for bits := range s.addr.bytes*8 + 1 {
		ls.ranges = append(ls.ranges, s.addSet(p+"source_ranges_"+strconv.Itoa(bits), with(key, s.addr)...))
	}
	ls.uncommon = s.addSet(p+"uncommon_source_ranges", key...)
	ls.masq[plan.MasqueradeOutside] = s.addSet(p+"masq_outside", key...)
	ls.masq[plan.MasqueradeAlways] = s.addSet(p+"masq_always", key...)
	ls.masq[plan.MasqueradeFromNode] = s.addSet(p+"masq_from_node", key...)
	ls.split = s.addSet(p+"split", key...)
	ls.retried = s.addSet(p+"retry_refused", key...)
	ls.longLived = s.addSet(p+"long_lived", key...)
	ls.groups = s.addSet(p+"affinity_groups", key...).mapTo(idField).hostData()
	ls.learn = s.addSet(p+"learn_affinity", key...).mapTo(verdictField)
	for scope := range scopes {
		p := prefix(l, scope)
		ss := &ls.scopes[scope]
		ss.rejected = s.addSet(p+"rejected", key...)
		ss.dropped = s.addSet(p+"dropped", key...)
		ss.find = s.addSet(p+"find_affinity", key...).mapTo(verdictField)
		s.balancing.addSets(s, l, scope, ss)
	}
	return ls
}

func (s *schema) addSet(name string, key ...field) *set {
	n := &set{name: name, key: key}
	s.byName[name] = n
	return n
}

// find returns the set with a name, nil if this version has none.
func (s *schema) find(name string) *set {
	if n := s.byName[name]; n != nil {
		return n
	}
	return s.findAffinitySet(name)
}

// base returns the sets that a table always has. Rules negate a lookup in one of them, so they could not be left out, and
// ResetTCP writes to another at any time.
func (s *schema) base() []*set {
	sets := []*set{s.lookups[byAddress].frontends, s.externalIPs, s.masqueradeBits}
	if s.balancing.traits().remembersResets {
		sets = append(sets, s.resets)
	}
	return sets
}

// hasRetries reports whether a frontend has asked for retries.
func (s *schema) hasRetries() bool {
	return s.lookups[byAddress].retried.exists || s.lookups[byNodePort].retried.exists
}

// addrPort decodes the data of a map.
func (s *schema) addrPort(b []byte) (netip.AddrPort, bool) {
	n := s.addr.bytes
	if len(b) < n+2 {
		return netip.AddrPort{}, false
	}
	a, ok := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n:])), ok
}
