package nftables

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// AffinityLimits bound the clients with session affinity that each family's table records, per list of endpoints: a
// Service whose frontends lead to different endpoints has two.
type AffinityLimits struct {
	// Reserved is the number of clients in a room. A Service port has a room of its own while there are no more than 64
	// with affinity; more of them share the rooms evenly.
	Reserved uint32
	// Shared is the number of clients, of all Service ports, whose room is full.
	Shared uint32
}

// DefaultAffinityLimits apply where AffinityLimits are zero. See the README for the memory that a client takes.
var DefaultAffinityLimits = AffinityLimits{Reserved: 8192, Shared: 262144}

const (
	affinityRooms = 64
	maxLists      = 1 << 10       // of a group; one or two are in use
	sharedRoom    = affinityRooms // the number of the room that all share
	// affinityGC is how often the kernel looks for groups that are full no longer. It goes through the sets of clients each
	// second: with another interval, nft 1.0.6 cannot load a saved map.
	affinityGC = 10 * time.Second
	// fullTimeout is for how long a group is listed as full after the last client that could not be recorded.
	fullTimeout = 5 * time.Minute
	fullSize    = 1 << 16
)

// learnChain is a chain that records clients: their room, and their timeout.
type learnChain struct {
	room    int
	timeout time.Duration
}

// findChain is a chain that leads the clients of a room to their endpoints in a list.
type findChain struct{ list, room int }

// clientSet is the clients of a list in a room.
type clientSet = findChain

const (
	learnPrefix  = "learn_affinity_"
	recordPrefix = "record_affinity_"
	findPrefix   = "find_affinity_"
	sendPrefix   = "send_affinity_"
)

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

func (c learnChain) String() string {
	return learnPrefix + strconv.Itoa(c.room) + "_" + milliseconds(c.timeout)
}
func (c learnChain) record(list int) string {
	return recordPrefix + strconv.Itoa(list) + strings.TrimPrefix(c.String(), strings.TrimSuffix(learnPrefix, "_"))
}
func (c findChain) number() string { return strconv.Itoa(c.list) + "_" + strconv.Itoa(c.room) }
func (c findChain) String() string { return findPrefix + c.number() }
func (c findChain) send() string   { return sendPrefix + c.number() }

func parseLearnChain(name string) (c learnChain, ok bool) {
	room, timeout, _ := strings.Cut(strings.TrimPrefix(name, learnPrefix), "_")
	n, err := strconv.Atoi(room)
	ms, err2 := strconv.Atoi(strings.TrimSuffix(timeout, "ms"))
	c = learnChain{n, time.Duration(ms) * time.Millisecond}
	return c, err == nil && err2 == nil && n >= 0 && n < affinityRooms && ms > 0 && c.String() == name
}

func parseFindChain(name string) (c findChain, ok bool) {
	list, room, _ := strings.Cut(strings.TrimPrefix(name, findPrefix), "_")
	n, err := strconv.Atoi(list)
	r, err2 := strconv.Atoi(room)
	c = findChain{n, r}
	return c, err == nil && err2 == nil && n >= 0 && n < maxLists && r >= 0 && r < affinityRooms && c.String() == name
}

// affinitySets are the sets of session affinity that are not keyed by frontend.
type affinitySets struct {
	limits    AffinityLimits
	endpoints map[int]*set       // by list: group id and endpoint, to the endpoint's id
	targets   map[int]*set       // by list: endpoint's id, to the endpoint
	clients   map[clientSet]*set // client and group id, to the endpoint's id
	full      *set               // ids of groups with a client that was not recorded in the last minutes
	learn     map[learnChain]int // chains, to the number of frontends that use them
	find      map[findChain]int
	grace     grace // of the last chain that was added
	unused    int   // chains without users
	newBytes  int   // of a transaction, for chains that are not in the kernel yet
}

func newAffinitySets(limits AffinityLimits) affinitySets {
	if limits.Reserved == 0 {
		limits.Reserved = DefaultAffinityLimits.Reserved
	}
	if limits.Shared == 0 {
		limits.Shared = DefaultAffinityLimits.Shared
	}
	return affinitySets{
		limits: limits, endpoints: map[int]*set{}, targets: map[int]*set{}, clients: map[clientSet]*set{},
		learn: map[learnChain]int{}, find: map[findChain]int{},
	}
}

func (s *schema) endpointsSet(list int) *set {
	n := s.affinity.endpoints[list]
	if n == nil {
		n = s.addSet("affinity_endpoints_"+strconv.Itoa(list), idField, s.addr, portField).mapTo(idField).hostData()
		s.affinity.endpoints[list] = n
	}
	return n
}

func (s *schema) targetsSet(list int) *set {
	n := s.affinity.targets[list]
	if n == nil {
		n = s.addSet("affinity_targets_"+strconv.Itoa(list), idField).mapTo(s.addr, portField).hostOrder()
		s.affinity.targets[list] = n
	}
	return n
}

// clientKey returns the key of the sets of clients: the client and the group id. In IPv6 the id comes first: nft 1.0.6 aborts
// when it loads a rule that changes a map whose key has something after 16 bytes.
func (s *schema) clientKey() []field {
	if s.family == model.IPv6 {
		return []field{idField, s.addr}
	}
	return []field{s.addr, idField}
}

func (s *schema) clientsSet(c clientSet) *set {
	n := s.affinity.clients[c]
	if n == nil {
		name, size := "affinity_"+c.number(), s.affinity.limits.Reserved
		if c.room == sharedRoom {
			name, size = "affinity_"+strconv.Itoa(c.list)+"_shared", s.affinity.limits.Shared
		}
		n = s.addSet(name, s.clientKey()...).mapTo(idField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT).hostData()
		n.size = size
		s.affinity.clients[c] = n
	}
	return n
}

func (s *schema) fullSet() *set {
	if s.affinity.full == nil {
		s.affinity.full = s.addSet("affinity_full", idField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT).hostOrder()
		s.affinity.full.size, s.affinity.full.gc = fullSize, affinityGC
	}
	return s.affinity.full
}

// findAffinitySet returns the numbered set with a name, nil if there can be none.
func (s *schema) findAffinitySet(name string) *set {
	rest, ok := strings.CutPrefix(name, "affinity_")
	if !ok {
		return nil
	}
	if rest == "full" {
		return s.fullSet()
	}
	head, tail, _ := strings.Cut(rest, "_")
	number := func(text string, below int) (n int, ok bool) {
		n, err := strconv.Atoi(text)
		return n, err == nil && n >= 0 && n < below
	}
	var n *set
	if list, ok := number(tail, maxLists); ok && head == "endpoints" {
		n = s.endpointsSet(list)
	} else if ok && head == "targets" {
		n = s.targetsSet(list)
	} else if list, ok := number(head, maxLists); ok && tail == "shared" {
		n = s.clientsSet(clientSet{list, sharedRoom})
	} else if room, ok2 := number(tail, affinityRooms); ok && ok2 {
		n = s.clientsSet(clientSet{list, room})
	}
	if n == nil || n.name != name {
		return nil
	}
	return n
}

// hasAffinity reports whether affinity was ever needed.
func (s *schema) hasAffinity() bool { return s.affinity.full != nil && s.affinity.full.exists }
