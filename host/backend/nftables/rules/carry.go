package rules

import (
	"bytes"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
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

// carriedClient is a client of the table that is being replaced, as its successor is to record it.
type carriedClient struct {
	key      [20]byte // client and group id
	endpoint int32    // in carrier.endpoints
	expires  time.Duration
}

// carrier copies recorded clients from one table to another.
type carrier struct {
	from, to  *table
	now       func() time.Time
	routes    map[affinityFind][]affinityFind // lists of the one table, to the lists of the other that the same pools use
	timeouts  map[uint32]time.Duration        // by group id of the other
	endpoints []netip.AddrPort
	indexes   map[netip.AddrPort]int32
	found     map[int][]carriedClient // by list of the other
}

// carryClients copies the clients that the table at from has recorded to t, with what remains of their timeouts. t has to
// record the clients of new connections already: then no client is missed, and a newer record wins.
func (b *Backend) carryClients(ctx context.Context, t *table, from *tableState) error {
	c := &carrier{
		from: newTable(t.family, t.conn, t.balancing), to: t, now: b.now,
		routes: map[affinityFind][]affinityFind{}, timeouts: map[uint32]time.Duration{}, indexes: map[netip.AddrPort]int32{},
	}
	if err := b.readConsistent(ctx, func() error { return c.readRoutes(from.name) }); err != nil {
		return err
	}
	if len(c.routes) == 0 {
		return nil
	}
	for _, list := range slices.Sorted(maps.Keys(c.from.affinity)) {
		if !c.from.affinity[list].exists {
			continue
		}
		readAt := b.now()
		if err := c.read(list); err != nil {
			return err
		}
		for _, n := range slices.Sorted(maps.Keys(c.found)) {
			if err := c.write(t.affinity[n], c.found[n], readAt); err != nil {
				return err
			}
		}
	}
	return nil
}

// readRoutes reads which lists the pools of the old table use. Sets and elements that this version does not write are
// ignored.
func (c *carrier) readRoutes(name string) error {
	c.from.reset()
	c.from.name = name
	if _, err := c.from.listSets(); err != nil {
		return err
	}
	for i := range lookups {
		ls := &c.from.lookups[i]
		sets := []*set{ls.frontends}
		for scope := range scopes {
			sets = slices.AppendSeq(sets, maps.Values(ls.scopes[scope].findAffinity))
		}
		for _, s := range sets {
			if err := c.readSet(s); err != nil {
				return err
			}
		}
	}
	clear(c.routes)
	for k, was := range c.from.frontends {
		shall := c.to.frontends[k]
		if shall == nil || len(shall.learn) == 0 || was.owner() != shall.owner() {
			continue
		}
		c.timeouts[shall.learn[0].id] = shall.learn[0].timeout
		for scope := range scopes {
			for _, old := range was.scopes[scope].find {
				for _, now := range shall.scopes[scope].find {
					if !slices.Contains(c.routes[old], now) {
						c.routes[old] = append(c.routes[old], now)
					}
				}
			}
		}
	}
	return nil
}

func (c *carrier) readSet(s *set) error {
	if !s.exists {
		return nil
	}
	list, err := c.from.dumpSettled(s)
	if err != nil {
		return err
	}
	put := c.from.loader(s)
	for _, e := range list {
		_ = put([]nfnl.Element{e})
	}
	return nil
}

// read reads the clients of one list. Those whose endpoint is gone are left out.
func (c *carrier) read(list int) error {
	c.found = map[int][]carriedClient{}
	c.from.conn.AllowInconsistent = true // other tables may change
	defer func() { c.from.conn.AllowInconsistent = false }()
	for pass := 1; pass <= maxPasses; pass++ {
		last := c.found
		c.found = map[int][]carriedClient{}
		if err := c.from.eachElement(c.from.affinity[list], func(b []byte) { c.put(list, nfnl.DecodeElement(b)) }); err != nil {
			return err
		}
		twice := false
		for n, clients := range c.found {
			all := len(clients)
			clients = unique(clients)
			twice = twice || len(clients) < all
			c.found[n] = unique(append(clients, last[n]...))
		}
		for n, clients := range last {
			if c.found[n] == nil {
				c.found[n] = clients
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

// put stores a client of a list for all lists that it belongs to now.
func (c *carrier) put(list int, e nfnl.Element) {
	n := c.to.addr.bytes
	endpoint, ok := c.to.addrPort(e.Data)
	if !ok || len(e.Key) < n+4 || e.Expires <= 0 {
		return
	}
	for _, to := range c.routes[affinityFind{list, groupIDOf(e.Key[n:])}] {
		if !c.to.groups.has(to, endpoint) {
			continue
		}
		i, ok := c.indexes[endpoint]
		if !ok {
			i = int32(len(c.endpoints))
			c.indexes[endpoint], c.endpoints = i, append(c.endpoints, endpoint)
		}
		client := carriedClient{endpoint: i, expires: min(e.Expires, c.timeouts[to.id])}
		copy(client.key[copy(client.key[:], e.Key[:n]):], native(to.id))
		c.found[to.list] = append(c.found[to.list], client)
	}
}

// write adds clients to a set of the new table. Those that it has recorded itself, or has no room for, are left out.
func (c *carrier) write(s *set, list []carriedClient, readAt time.Time) error {
	t := c.to
	for chunk := range slices.Chunk(list, clientsPerTx) {
		for len(chunk) > 0 {
			age := c.now().Sub(readAt)
			chunk = slices.DeleteFunc(chunk, func(e carriedClient) bool { return e.expires <= age })
			out := nfnl.NewBatch(t.conn)
			for _, e := range chunk {
				key, endpoint := e.key[:t.addr.bytes+4], c.endpoints[e.endpoint]
				out.PutNewElement(t.nfproto, t.name, s.name, nfnl.Element{
					Key: key, Data: appendPort(appendAddr(nil, endpoint.Addr()), endpoint.Port()),
					Timeout: c.timeouts[groupIDOf(key[t.addr.bytes:])], Expires: e.expires - age,
				})
			}
			t.stats.messages += out.Count
			t.stats.elements += out.Elements
			refused, err := out.CommitUnless(unix.EEXIST, unix.EBUSY, unix.ENFILE)
			if err != nil {
				return err
			}
			if len(refused) == 0 {
				break
			}
			for i, n := range refused {
				chunk = slices.Delete(chunk, n-i, n-i+1)
			}
		}
	}
	return nil
}
