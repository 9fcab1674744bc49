package nftables

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

const (
	// maxUnusedChains is how many chains stay although no frontend uses them. They may be needed again.
	maxUnusedChains = 16
	// unusedPerTx is how many of them one transaction deletes.
	unusedPerTx = 256
	// chainBytes is about what a transaction that adds such a chain takes, with the chains that only it leads to.
	chainBytes = 3 << 10
)

func (s *schema) hasLearnChain(c learnChain) bool {
	_, ok := s.affinity.learn[c]
	return ok
}

// needLearnChain makes sure that a chain exists once the transaction under construction is committed.
func (t *table) needLearnChain(c learnChain) {
	t.need(t.fullSet())
	if !t.hasLearnChain(c) {
		count(&t.affinity, t.affinity.learn, c, 0)
		t.rulesDirty, t.affinity.grace = true, t.nextGrace()
		t.affinity.newBytes += chainBytes
	}
}

// needFindChain does the same for a chain and the sets of its list and room.
func (t *table) needFindChain(c findChain) {
	if !t.clientsSet(c).exists { // the chains that record clients of the room get rules for it
		for l := range t.affinity.learn {
			if l.room == c.room {
				t.affinity.newBytes += chainBytes
			}
		}
	}
	for _, s := range []*set{t.endpointsSet(c.list), t.targetsSet(c.list), t.clientsSet(c), t.clientsSet(clientSet{c.list, sharedRoom})} {
		t.need(s)
	}
	if _, ok := t.affinity.find[c]; !ok {
		count(&t.affinity, t.affinity.find, c, 0)
		t.rulesDirty, t.affinity.grace = true, t.nextGrace()
		t.affinity.newBytes += chainBytes
	}
}

// countChains counts the chains that a frontend uses.
func (t *table) countChains(h *elements, by int) {
	for _, c := range h.learn {
		count(&t.affinity, t.affinity.learn, c, by)
	}
	for scope := range scopes {
		for _, c := range h.scopes[scope].find {
			count(&t.affinity, t.affinity.find, c, by)
		}
	}
}

// count changes the number of frontends that use a chain. The chain exists from then on.
func count[C comparable](s *affinitySets, users map[C]int, c C, by int) {
	was, existed := users[c]
	users[c] = was + by
	if existed && was <= 0 {
		s.unused--
	}
	if was+by <= 0 {
		s.unused++
	}
}

// unusedChain is a chain that no frontend uses, with the chains that only it leads to.
type unusedChain struct {
	names  []string
	forget func()
}

func (t *table) unusedChains() (unused []unusedChain) {
	for c, users := range t.affinity.learn {
		if users > 0 {
			continue
		}
		names := []string{c.String()}
		for list := range t.affinity.endpoints {
			if _, ok := t.chains[c.record(list)]; ok {
				names = append(names, c.record(list))
			}
		}
		unused = append(unused, unusedChain{names, func() { delete(t.affinity.learn, c) }})
	}
	for c, users := range t.affinity.find {
		if users <= 0 {
			unused = append(unused, unusedChain{[]string{c.String(), c.send()}, func() { delete(t.affinity.find, c) }})
		}
	}
	return unused
}

// deleteUnusedChains deletes the chains that no frontend uses, once there are many. Packets that are being evaluated keep
// the rules that they found.
func (t *table) deleteUnusedChains() error {
	if t.affinity.unused <= maxUnusedChains {
		return nil
	}
	unused := t.unusedChains()
	slices.SortFunc(unused, func(a, b unusedChain) int { return slices.Compare(a.names, b.names) })
	for chunk := range slices.Chunk(unused, unusedPerTx) {
		if err := t.deleteChains(chunk); err != nil {
			return err
		}
	}
	return nil
}

// deleteChains deletes chains with their rules, except those that the kernel still counts references to: Linux before 6.2
// may do that for a moment after an element that refers to a chain is deleted.
func (t *table) deleteChains(unused []unusedChain) error {
	for len(unused) > 0 {
		out := nfnl.NewBatch(t.conn)
		var at []int // of the chain that a message is about
		for i, u := range unused {
			for _, name := range u.names {
				out.DeleteChain(t.Table, name)
				at = append(at, i)
			}
		}
		refused, err := out.CommitUnless(unix.EBUSY)
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			t.stats.messages += out.Count
			for _, u := range unused {
				u.forget()
				t.affinity.unused--
				for _, name := range u.names {
					delete(t.chains, name)
				}
			}
			return nil
		}
		busy := map[int]bool{}
		for message := range refused {
			busy[at[message]] = true
		}
		var rest []unusedChain
		for i, u := range unused {
			if !busy[i] {
				rest = append(rest, u)
			}
		}
		unused = rest
	}
	return nil
}
