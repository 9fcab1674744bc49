package nftables

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// Bounds of carrying clients over.
const (
	// clientsPerTx is how many clients one transaction adds. Each is a message of its own, so that the kernel can refuse
	// it alone.
	clientsPerTx = 256
	// A set is read at least minPasses times, and until a pass returns no client twice, at most maxPasses times: packets
	// change the set meanwhile, and the kernel may be resizing it, so that a pass can miss a client.
	minPasses, maxPasses = 2, 5
)

// recordedClients is a set of clients in the table that is being replaced.
type recordedClients struct {
	set  *set
	list int
	// endpoint decodes the data of an element.
	endpoint func(data []byte) (netip.AddrPort, bool)
}

// split returns the client and the group of an element.
func (r *recordedClients) split(key []byte) (client, group []byte, ok bool) {
	n := padded(r.set.key[:1])
	if len(key) < padded(r.set.key) {
		return nil, nil, false
	}
	if r.set.key[0] == idField {
		return key[n:], key[:n], true
	}
	return key[:n], key[n:], true
}

// oldRoute is a list of an affinity group in the table that is being replaced.
type oldRoute struct {
	group uint32
	list  int
}

// route is one in its successor.
type route struct {
	group affinityID
	find  findChain
}

// carriedClient is a client as the successor is to record it.
type carriedClient struct {
	key      [20]byte // client and group id
	endpoint affinityID
	expires  time.Duration
}

// carrier copies recorded clients from one table to another.
type carrier struct {
	from, to *table
	now      func() time.Time
	routes   map[oldRoute][]route // of the pools that use the old list
	timeouts map[affinityID]time.Duration
	found    map[findChain][]carriedClient
}

// carryClients copies the clients that the table at from has recorded to t, with what remains of their timeouts. t has to
// record the clients of new connections already: then no client is missed, and a newer record wins.
func (b *Backend) carryClients(ctx context.Context, t *table, from *tableState) error {
	c := &carrier{
		from: newTable(t.family, t.conn, t.balancing, b.limits), to: t, now: b.now,
		routes: map[oldRoute][]route{}, timeouts: map[affinityID]time.Duration{},
	}
	if _, err := b.readConsistent(ctx, func() error { return c.readRoutes(from.name) }); err != nil {
		return err
	}
	if len(c.routes) == 0 {
		return nil
	}
	for _, old := range c.sets() {
		readAt := b.now()
		if err := c.read(&old); err != nil {
			return err
		}
		for _, find := range slices.SortedFunc(maps.Keys(c.found), func(a, b findChain) int { return cmp.Or(a.list-b.list, a.room-b.room) }) {
			for _, s := range []*set{t.clientsSet(find), t.clientsSet(clientSet{find.list, sharedRoom})} {
				var err error
				if c.found[find], err = c.write(s, c.found[find], readAt); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sets returns the sets of clients that exist, those that all share last.
func (c *carrier) sets() (out []recordedClients) {
	for _, at := range slices.SortedFunc(maps.Keys(c.from.affinity.clients), func(a, b clientSet) int { return cmp.Or(a.room-b.room, a.list-b.list) }) {
		s := c.from.affinity.clients[at]
		if !s.exists {
			continue
		}
		addrs := map[affinityID]netip.AddrPort{}
		for _, g := range c.from.groups.byID {
			if at.list < len(g.lists) {
				for _, e := range g.lists[at.list].programmed {
					addrs[g.id.endpoint(e.id)] = e.addr
				}
			}
		}
		out = append(out, recordedClients{
			set: s, list: at.list,
			endpoint: func(data []byte) (netip.AddrPort, bool) {
				a, ok := addrs[affinityID(uint32Of(data))]
				return a, ok
			},
		})
	}
	return out
}

// readRoutes reads which lists the pools of the old table use. Sets and elements that no version writes are ignored.
func (c *carrier) readRoutes(name string) error {
	c.from.reset()
	c.from.Name = name
	if _, err := c.from.listSets(c.from.find); err != nil {
		return err
	}
	if err := c.findClientsV4(); err != nil {
		return err
	}
	for list, s := range c.from.affinity.endpoints {
		if err := c.readSet(s, func(e nfnl.Element) { c.from.loadEndpoint(list, e) }); err != nil {
			return err
		}
	}
	for i := range lookups {
		ls := &c.from.lookups[i]
		for _, s := range []*set{ls.frontends, ls.groups, ls.scopes[inside].find, ls.scopes[outside].find} {
			put := c.from.loader(s)
			if err := c.readSet(s, func(e nfnl.Element) { _ = put([]nfnl.Element{e}) }); err != nil {
				return err
			}
		}
	}
	clear(c.routes)
	for k, was := range c.from.frontends {
		shall := c.to.frontends[k]
		if shall == nil || len(shall.groups) == 0 || len(shall.learn) == 0 || was.owner() != shall.owner() {
			continue
		}
		group := shall.groups[0]
		c.timeouts[group] = shall.learn[0].timeout
		for scope := range scopes {
			for _, now := range shall.scopes[scope].find {
				for _, old := range oldRoutes(was, scope) {
					if r := (route{group, now}); !slices.Contains(c.routes[old], r) {
						c.routes[old] = append(c.routes[old], r)
					}
				}
			}
		}
	}
	return nil
}

// findClientsV4 finds the sets of clients that ruleset version 4 has written: in both families, the client comes first in their
// key.
func (c *carrier) findClientsV4() error {
	_, err := c.from.listSets(func(name string) *set {
		s := c.from.findAffinitySet(name)
		if s == nil || s.exists || s.key[len(s.key)-1] != c.from.addr {
			return nil
		}
		s.key = []field{c.from.addr, idField}
		return s
	})
	return err
}

func oldRoutes(was *elements, scope int) (routes []oldRoute) {
	for _, group := range was.groups {
		for _, f := range was.scopes[scope].find {
			routes = append(routes, oldRoute{uint32(group), f.list})
		}
	}
	return routes
}

func (c *carrier) readSet(s *set, put func(nfnl.Element)) error {
	if !s.exists {
		return nil
	}
	list, err := c.from.dumpSettled(s)
	if err != nil {
		return err
	}
	for _, e := range list {
		put(e)
	}
	return nil
}

// read reads a set of clients. Those whose endpoint is gone are left out.
func (c *carrier) read(old *recordedClients) error {
	c.found = map[findChain][]carriedClient{}
	c.from.conn.AllowInconsistent = true // other tables may change
	defer func() { c.from.conn.AllowInconsistent = false }()
	for pass := 1; pass <= maxPasses; pass++ {
		last := c.found
		c.found = map[findChain][]carriedClient{}
		if err := c.from.eachElement(old.set, func(b []byte) { c.put(old, nfnl.DecodeElement(b)) }); err != nil {
			return err
		}
		twice := false
		for find, clients := range c.found {
			all := len(clients)
			clients = unique(clients)
			twice = twice || len(clients) < all
			c.found[find] = unique(append(clients, last[find]...))
		}
		for find, clients := range last {
			if c.found[find] == nil {
				c.found[find] = clients
			}
		}
		if pass >= minPasses && !twice {
			break
		}
	}
	return nil
}

// unique sorts clients and keeps the first record of each.
func unique(list []carriedClient) []carriedClient {
	slices.SortStableFunc(list, func(a, b carriedClient) int { return bytes.Compare(a.key[:], b.key[:]) })
	return slices.CompactFunc(list, func(a, b carriedClient) bool { return a.key == b.key })
}

// put stores a client for all lists that it belongs to now.
func (c *carrier) put(old *recordedClients, e nfnl.Element) {
	from, group, ok := old.split(e.Key)
	if !ok || e.Expires <= 0 {
		return
	}
	addr, ok := old.endpoint(e.Data)
	if !ok {
		return
	}
	for _, to := range c.routes[oldRoute{uint32Of(group), old.list}] {
		id, ok := c.to.groups.endpointID(to.group, to.find.list, addr)
		if !ok {
			continue
		}
		client := carriedClient{endpoint: id, expires: min(e.Expires, c.timeouts[to.group])}
		if key := client.key[:0]; c.to.clientKey()[0] == idField {
			_ = append(append(key, to.group.bytes()...), from...)
		} else {
			_ = append(append(key, from...), to.group.bytes()...)
		}
		c.found[to.find] = append(c.found[to.find], client)
	}
}

// write adds clients to a set of the new table, and returns those that it has no room for. Those that it has recorded
// itself are left out.
func (c *carrier) write(s *set, list []carriedClient, readAt time.Time) (left []carriedClient, err error) {
	t := c.to
	for chunk := range slices.Chunk(list, clientsPerTx) {
		for len(chunk) > 0 {
			age := c.now().Sub(readAt)
			chunk = slices.DeleteFunc(chunk, func(e carriedClient) bool { return e.expires <= age })
			out := nfnl.NewBatch(t.conn)
			for _, e := range chunk {
				out.PutNewElement(t.Table, s.name, nfnl.Element{
					Key: e.key[:t.addr.bytes+4], Data: e.endpoint.bytes(), Timeout: c.timeouts[e.endpoint.group()], Expires: e.expires - age,
				})
			}
			t.stats.messages += out.Count
			t.stats.elements += out.Elements
			refused, err := out.CommitUnless(unix.EEXIST, unix.EBUSY, unix.ENFILE)
			if err != nil {
				return nil, err
			}
			if len(refused) == 0 {
				break
			}
			var again []carriedClient
			for i, e := range chunk {
				switch refused[i] {
				case 0:
					again = append(again, e)
				case unix.ENFILE:
					left = append(left, e)
				}
			}
			chunk = again
		}
	}
	return left, nil
}
