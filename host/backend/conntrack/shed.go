package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

const (
	// listedPerCall is how many entries may be listed for each call of Shed, on average. Calls are at least 1 s apart and an
	// entry takes some 2 µs (BenchmarkListToShed), so listing takes about 1 % of a processor.
	listedPerCall = 5000
	// maxPicked bounds how many connections are remembered. Some 280 bytes are allocated for each (BenchmarkListToShed).
	maxPicked = 100_000
)

// shedID identifies the steps of a shed.
type shedID struct {
	endpoint netip.AddrPort
	protocol model.Protocol
	seed     uint64
}

// pick is the connections that the steps of a shed are going to reset. They are listed once for many steps. Connections that are
// made later are not among them.
type pick struct {
	from, until uint64 // those with a hash in this range
	list        []picked
}

// shedder is the state between the calls of Shed.
type shedder struct {
	picks map[shedID]*pick
	rest  int // calls until the table may be listed again
	lists int // how often it has been listed, for tests
}

// Shed deletes the entries of the established connections that the sheds select, with the same effect as Reset. deferred reports
// which sheds have to be repeated because the table may not be listed so soon again; nil: none.
//
// The table is listed when a shed begins, and not for its further steps. The listing is streamed.
func (t *Table) Shed(ctx context.Context, sheds []plan.Shed, tcp backend.Resetter) (total plan.ResetCount, deferred []bool, err error) {
	s := &t.shedder
	s.rest = max(0, s.rest-1)
	missing := func(shed plan.Shed) bool { p := s.picks[idOf(&shed)]; return p == nil || p.until < shed.To }
	if slices.ContainsFunc(sheds, missing) {
		if s.rest > 0 {
			deferred = make([]bool, len(sheds))
		} else if err := s.list(ctx, sheds); err != nil {
			return total, nil, fmt.Errorf("conntrack: list connections to shed: %w", err)
		}
	}
	var errs []error
	kept := make(map[shedID]*pick, len(sheds))
	for i := range sheds {
		shed := &sheds[i]
		p := s.picks[idOf(shed)]
		if deferred != nil && missing(*shed) {
			deferred[i] = true
			if p != nil {
				kept[idOf(shed)] = p
			}
			continue
		}
		due, _ := slices.BinarySearchFunc(p.list, shed.To, func(c picked, to uint64) int { return cmp.Compare(uint64(c.hash), to) })
		n, done, err := t.end(ctx, model.FamilyOf(shed.Endpoint.Addr()), p.list[:due], tcp)
		if err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s: %w", shed.Endpoint, err))
		}
		total.Connections, total.Uncertain = total.Connections+n.Connections, total.Uncertain+n.Uncertain
		p.list = p.list[done:]
		if shed.To < shed.Until {
			kept[idOf(shed)] = p
		}
	}
	s.picks = kept
	return total, deferred, errors.Join(errs...)
}

func idOf(s *plan.Shed) shedID {
	id := shedID{endpoint: s.Endpoint, seed: s.Seed}
	if len(s.Frontends) > 0 {
		id.protocol = s.Frontends[0].Protocol
	}
	return id
}

// list picks the connections of all sheds, up to the end of each.
func (s *shedder) list(ctx context.Context, sheds []plan.Shed) error {
	picks, byFlow := map[shedID]*pick{}, map[plan.Reset]*pick{}
	endpoints, families := map[netip.AddrPort]bool{}, map[model.Family]bool{}
	seeds := map[*pick]uint64{}
	for i := range sheds {
		shed := &sheds[i]
		p := &pick{from: shed.From, until: shed.Until}
		picks[idOf(shed)], seeds[p] = p, shed.Seed
		endpoints[shed.Endpoint], families[model.FamilyOf(shed.Endpoint.Addr())] = true, true
		for _, k := range shed.Frontends {
			byFlow[plan.Reset{Frontend: k, Endpoint: shed.Endpoint}] = p
		}
	}
	total, listed := 0, 0
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		if !families[f] {
			continue
		}
		err := listFlows(ctx, f, statusSeenReply, statusSeenReply, func(c *flowEntry) {
			listed++
			if !endpoints[c.endpoint] || !c.established() {
				return
			}
			p := lookUpFlow(byFlow, c)
			if p == nil {
				return
			}
			hash := plan.ShedHash(seeds[p], c.client, c.frontend)
			if uint64(hash) < p.from || uint64(hash) >= p.until {
				return
			}
			p.list = append(p.list, pickEntry(c, hash))
			if total++; total >= 2*maxPicked {
				total = prune(picks, total)
			}
		})
		if err != nil {
			return err
		}
	}
	prune(picks, total)
	s.picks, s.rest = picks, listed/listedPerCall
	s.lists++
	return nil
}

// lookUpFlow returns what is asked for the connections of an entry. NodePort frontends have the unspecified address.
func lookUpFlow[T any](byFlow map[plan.Reset]T, c *flowEntry) (found T) {
	key := plan.Key{Addr: c.frontend.Addr(), Port: c.frontend.Port(), Protocol: model.Protocol(c.protocol)}
	if found, ok := byFlow[plan.Reset{Frontend: key, Endpoint: c.endpoint}]; ok {
		return found
	}
	if key.Addr = netip.IPv4Unspecified(); c.frontend.Addr().Is6() {
		key.Addr = netip.IPv6Unspecified()
	}
	return byFlow[plan.Reset{Frontend: key, Endpoint: c.endpoint}]
}

// prune sorts the picks, and leaves maxPicked connections in all: of each shed those that are reset first. It returns how many
// are left.
func prune(picks map[shedID]*pick, total int) (left int) {
	for _, p := range picks {
		slices.SortFunc(p.list, func(a, b picked) int { return cmp.Compare(a.hash, b.hash) })
		if keep := len(p.list) * maxPicked / max(total, maxPicked); keep < len(p.list) {
			p.until = uint64(p.list[keep].hash)
			for keep > 0 && uint64(p.list[keep-1].hash) >= p.until { // equal hashes are reset together
				keep--
			}
			clear(p.list[keep:])
			p.list = p.list[:keep]
		}
		left += len(p.list)
	}
	return left
}
