package nftables

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// table is the known kernel state of one family's table.
type table struct {
	*schema
	tableReader
	stats txStats

	present            bool      // the kernel has a table of this version
	large              bool      // the plan has many frontends
	hooks              hookStage // the base chains that it has or is to have
	replacing          bool      // another table has our name: see replaceTable
	atName, atHandover tableState
	fixedSizes         bool // sets of other sizes are a mismatch
	unsupported        bool // the kernel cannot create it
	rulesDirty         bool // sets have to be created or rules rewritten
	newSets            []*set
	grace              grace // of the rules that are to be written; nil if nothing can wait for them
	gracePeriods       *gracePeriods
	chains             map[string]string // what identifies the rules of each chain as last written
	masqueradeBit      uint32

	frontends map[plan.Key]*elements
	globals   globals

	longLived int  // frontends with LongLived
	offloads  bool // it has, or may have, what SyncOffload creates

	groups affinityGroups

	counted *countedEndpoints
	oldSets []*set // to be deleted

	hairpins, refusingAddrs, clusterAddrs, otherAddrs, vipRefs refCounts

	addrsUncounted bool // the table was read: which addresses of endpoints need an entry is known once all frontends are written
}

// hookStage is which base chains a table has.
type hookStage uint8

const (
	unhooked   hookStage = iota // none: no packet passes it
	learning                    // those that connections pass which are balanced already: it records their clients
	forwarding                  // all
)

// txStats counts what was sent to the kernel.
type txStats struct {
	messages, elements int
	waits              int // for grace periods
}

func newTable(f model.Family, conn *nfnl.Conn, b Balancing, limits AffinityLimits) *table {
	t := &table{
		schema:      &schema{family: f, balancing: b, affinity: affinitySets{limits: limits}},
		tableReader: tableReader{nfnl.Table{Family: nfproto(f)}, conn}, gracePeriods: &gracePeriods{},
	}
	t.reset()
	return t
}

// reset returns to the state without a table.
func (t *table) reset() {
	t.schema = newSchema(t.family, t.balancing, t.affinity.limits)
	t.Name, t.hooks = tableName, forwarding
	t.present, t.rulesDirty, t.grace, t.newSets = false, false, nil, nil
	t.chains, t.masqueradeBit = map[string]string{}, 0
	t.frontends, t.globals = map[plan.Key]*elements{}, globals{}
	t.longLived, t.offloads = 0, false
	t.groups = newAffinityGroups()
	t.hairpins = newRefCounts(t.hairpin, true)
	t.refusingAddrs = newRefCounts(t.refusing, false)
	t.clusterAddrs = newRefCounts(t.clusterIPs, false)
	t.otherAddrs = newRefCounts(t.externalIPs, false)
	t.vipRefs = newRefCounts(t.vipAddrs, false)
	t.addrsUncounted = false
	t.counted, t.oldSets = newCountedEndpoints(), nil
}

// need makes sure that a set exists once the transaction under construction is committed.
func (t *table) need(s *set) {
	if s.exists {
		return
	}
	s.exists = true
	if !s.counters { // those change no packet's way
		s.grace = t.nextGrace()
	}
	t.newSets = append(t.newSets, s)
	t.rulesDirty = true
}

// In a plan of at least largePlan frontends, the sets for pools of all sizes are created with the first pool. The kernel walks a
// whole map when a chain gets its first rule that looks it up. With 100,000 slots that takes 150 ms, with none nothing. In a
// smaller plan, those from 1<<growingClass slots are created with the first of them: a pool that grows passes through all of
// them, and new rules wait for a grace period.
const (
	largePlan    = 500
	growingClass = 8
)

// preallocate creates the sets that pools of a scope are likely to need, when one of a size class is.
func (t *table) preallocate(ls *scopeSets, class int) {
	from := 0
	if !t.large {
		if from = growingClass; class < from {
			return
		}
	}
	for _, s := range ls.bySize[from : maxSizeClass+1] {
		t.need(s)
	}
}

// forwards reports whether the kernel has the table and new connections pass it.
func (t *table) forwards() bool { return t.present && t.hooks == forwarding }

// create requests the table with the sets that it always has.
func (t *table) create() {
	for _, s := range t.base() {
		t.need(s)
	}
	t.rulesDirty = true
}

// writeStructure writes the messages that create new sets and bring the rules up to date with the existing sets.
func (t *table) writeStructure(b *nfnl.Batch) error {
	if !t.present {
		b.NewTable(0, t.Table, 0, t.balancing.traits().tableComment)
	}
	for i, s := range t.newSets {
		t.newSet(b, s, uint32(i+1))
	}
	chains := t.wantedChains()
	for _, c := range chains {
		if _, ok := t.chains[c.name]; !ok {
			b.NewChain(c.of(t.Table))
		}
	}
	for _, c := range chains {
		if err := t.writeRules(b, c); err != nil {
			return err
		}
	}
	t.deleteOld(b)
	t.present, t.newSets, t.affinity.newBytes = true, nil, 0
	return nil
}

// wantedChains returns the chains that the table is to have.
func (t *table) wantedChains() []chain {
	return slices.DeleteFunc(t.ruleset(t.masqueradeBit), func(c chain) bool {
		return c.hook >= 0 && (t.hooks == unhooked || t.hooks == learning && !c.learns())
	})
}

func (t *tableReader) newSet(b *nfnl.Batch, s *set, id uint32) {
	b.Message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t.Family, "create set", s.name)
	b.PutString(unix.NFTA_SET_TABLE, t.Name)
	b.PutString(unix.NFTA_SET_NAME, s.name)
	b.PutUint32(unix.NFTA_SET_FLAGS, s.flags)
	b.PutUint32(unix.NFTA_SET_KEY_TYPE, typeOf(s.key))
	b.PutUint32(unix.NFTA_SET_KEY_LEN, uint32(padded(s.key)))
	if s.data != nil {
		b.PutUint32(unix.NFTA_SET_DATA_TYPE, typeOf(s.data))
		b.PutUint32(unix.NFTA_SET_DATA_LEN, uint32(padded(s.data)))
	}
	b.PutUint32(unix.NFTA_SET_ID, id)
	if s.size > 0 {
		at := b.BeginNest(unix.NFTA_SET_DESC)
		b.PutUint32(unix.NFTA_SET_DESC_SIZE, s.size)
		b.EndNest(at)
	}
	if s.counters {
		putCounters(b, t.Family)
	}
	if s.gc > 0 {
		b.PutUint32(unix.NFTA_SET_GC_INTERVAL, uint32(s.gc.Milliseconds()))
	}
	if s.userdata != nil {
		b.PutBytes(unix.NFTA_SET_USERDATA, s.userdata)
	}
	b.End()
}

// writeRules replaces the rules of a chain if they differ from those last written.
func (t *table) writeRules(b *nfnl.Batch, c chain) error {
	last, ok := t.chains[c.name]
	if ok && c.lazy != nil && last == c.variant {
		return nil
	}
	rules, now, err := c.encode()
	if err != nil || ok && last == now {
		return err
	}
	t.chains[c.name] = now
	if last != "" {
		b.DeleteRule(t.Table, c.name, 0)
	}
	for _, e := range rules {
		b.NewRule(t.Table, c.name, e)
	}
	return nil
}

// tableState is what the kernel has under one of the two names.
type tableState struct {
	name    string
	exists  bool
	comment string
	hooks   []string // names of its base chains
}

// forwards reports whether new connections pass the table.
func (s *tableState) forwards() bool { return slices.Contains(s.hooks, chainPrerouting) }
