package nftables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// AffinityUsage is how many clients with session affinity are recorded, in the tables of either mode.
type AffinityUsage struct {
	// Counted reports whether the kernel counts the elements of sets, as from Linux 6.16.
	Counted            bool
	Clients4, Clients6 int // expired ones included, for up to 10 seconds
	// Full are the Service ports with a client that could not be recorded in the last 5 minutes, sorted. Its connections
	// are balanced.
	Full []model.PortName
}

// ReadAffinityUsage reads the usage, with a socket of its own. It lists the names and sizes of sets. Only if a Service
// port is full, it lists the frontends with affinity too.
func ReadAffinityUsage(ctx context.Context, netns int) (u AffinityUsage, err error) {
	conn, err := nfnl.Open(netns, nfnl.DefaultSendBuffer)
	if err != nil {
		return u, fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	conn.AllowInconsistent = true // tables may change: then the next reading differs
	u.Counted = true
	full := map[model.PortName]bool{}
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		if err := ctx.Err(); err != nil {
			return u, fmt.Errorf("nftables: read the usage of session affinity: %w", err)
		}
		t := newTable(family, conn, Slots{}, AffinityLimits{})
		if _, err := t.listSets(t.find); err != nil {
			return u, err
		}
		clients := &u.Clients4
		if family == model.IPv6 {
			clients = &u.Clients6
		}
		for _, s := range t.affinity.clients {
			*clients += s.count
			u.Counted = u.Counted && (!s.exists || s.counted)
		}
		if err := t.readFull(full); err != nil {
			return u, err
		}
	}
	u.Full = slices.SortedFunc(maps.Keys(full), func(a, b model.PortName) int { return strings.Compare(a.String(), b.String()) })
	return u, nil
}

// readFull adds the Service ports of the groups that are listed as full.
func (t *table) readFull(full map[model.PortName]bool) error {
	if !t.hasAffinity() {
		return nil
	}
	list, _, err := t.dumpElements(t.affinity.full)
	if err != nil || len(list) == 0 {
		return err
	}
	groups := map[affinityID]bool{}
	for _, e := range list {
		groups[affinityID(uint32Of(e.Key))] = true
	}
	for i := range lookups {
		ls := &t.lookups[i]
		if !ls.groups.exists {
			continue
		}
		keys, _, err := t.dumpElements(ls.groups)
		if err != nil {
			return err
		}
		f := t.fetcher(ls.frontends)
		for _, e := range keys {
			id := affinityID(uint32Of(e.Data))
			k, _, ok := t.frontendKeyOf(i, e.Key)
			if !ok || !groups[id] {
				continue
			}
			if err := f.request(1, func(b []byte) bool {
				owner, _, _, ok := parseComment(nfnl.DecodeElement(b).Comment, k.Protocol)
				if ok {
					full[owner] = true
				}
				return ok
			}); err != nil {
				return err
			}
			f.add(e.Key)
		}
		if err := f.flush(); err != nil {
			return err
		}
	}
	return nil
}
