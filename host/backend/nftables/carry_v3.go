package nftables

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// schemaV3 is how ruleset versions up to 3 record clients: in one map per list, from the client and a group id to the
// endpoint. Other maps lead from frontends to the group id, one per list.
type schemaV3 struct {
	*schema
	clients map[int]*set // by list
	finds   []findV3
	routes  map[frontendScope][]oldRoute
}

type findV3 struct {
	set    *set
	lookup lookup
	scope  int
	list   int
}

type frontendScope struct {
	key   plan.Key
	scope int
}

func newSchemaV3(s *schema) *schemaV3 {
	return &schemaV3{schema: s, clients: map[int]*set{}, routes: map[frontendScope][]oldRoute{}}
}

// find returns the set with a name, nil if these versions have none that matters.
func (s *schemaV3) find(name string) *set {
	base := strings.TrimRight(name, "0123456789")
	list, err := strconv.Atoi(name[len(base):])
	if err != nil {
		return nil
	}
	if base == "affinity_" {
		n := &set{name: name, key: []field{s.addr, idField}}
		s.clients[list] = n.mapTo(s.addr, portField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT)
		return n
	}
	for i := range lookups {
		for scope := range scopes {
			if base == prefix(i, scope)+"find_affinity_" {
				n := &set{name: name, key: s.frontendKey(i)}
				s.finds = append(s.finds, findV3{n.mapTo(idField), i, scope, list})
				return n
			}
		}
	}
	return nil
}

func (s *schemaV3) exists() bool {
	for _, n := range s.clients {
		if n.exists {
			return true
		}
	}
	return false
}

// load stores an element of a map from frontends to group ids.
func (s *schemaV3) load(t *table, f findV3, e nfnl.Element) {
	if k, _, ok := t.frontendKeyOf(f.lookup, e.Key); ok && len(e.Data) >= 4 {
		at := frontendScope{k, f.scope}
		s.routes[at] = append(s.routes[at], oldRoute{uint32Of(e.Data), f.list})
	}
}

func (s *schemaV3) clientSets(t *table) (out []recordedClients) {
	for list, n := range s.clients {
		if n.exists {
			out = append(out, recordedClients{
				set: n, list: list, endpoint: func(data []byte) (netip.AddrPort, bool) { return t.addrPort(data) },
			})
		}
	}
	return out
}
