package nftables

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// load reads the table. If it has another schema, or a replacement was not finished, the table stays empty, replacing
// is set and the reason returned.
func (t *table) load() (mismatch error, err error) {
	t.reset()
	t.replacing = false
	if t.atName, t.atHandover, err = t.listTables(); err != nil {
		return nil, err
	}
	if t.atName.exists {
		if mismatch, err = t.loadAs(tableName, &t.atName); err != nil {
			return nil, err
		}
	}
	if mismatch == nil && !t.atHandover.exists {
		return nil, nil
	}
	for _, s := range []*tableState{&t.atName, &t.atHandover} {
		if err := t.listBaseChains(s); err != nil {
			return nil, err
		}
	}
	if !t.atName.exists && t.atHandover.forwards() {
		mismatch = errSchemaMismatch{"its replacement was not finished"}
	}
	t.replacing = mismatch != nil
	return mismatch, nil
}

// loadForwarding reads the table that forwards. During a replacement that is the one under handoverName.
func (t *table) loadForwarding() (mismatch error, err error) {
	if mismatch, err = t.load(); err != nil || mismatch == nil || !t.atHandover.forwards() {
		return mismatch, err
	}
	return t.loadAs(handoverName, &t.atHandover)
}

// loadAs reads the table with a name. It stays empty if the schema differs.
func (t *table) loadAs(name string, s *tableState) (mismatch error, err error) {
	t.Name = name
	if err = t.loadAll(s); err == nil {
		return nil, nil
	}
	var mismatched errSchemaMismatch
	if t.reset(); errors.As(err, &mismatched) {
		return mismatched, nil
	}
	return nil, err
}

func (t *table) loadAll(s *tableState) error {
	if t.present = true; !t.balancing.acceptsComment(s.comment) {
		return errSchemaMismatch{fmt.Sprintf("its comment is %q, not %q", s.comment, t.balancing.traits().tableComment)}
	}
	if err := t.loadSets(); err != nil {
		return err
	}
	for _, name := range t.existing() {
		if strings.HasSuffix(name, "slots") {
			continue // their keys mostly follow from others
		}
		if err := t.loadElements(t.byName[name]); err != nil {
			return err
		}
	}
	for i := range lookups {
		for l := range scopes {
			if err := t.loadSlots(i, l); err != nil {
				return err
			}
		}
	}
	if len(t.globals.masqueradeBits) > 1 {
		return errSchemaMismatch{"it has more than one masquerade bit"}
	}
	if len(t.globals.masqueradeBits) == 1 {
		t.masqueradeBit = t.globals.masqueradeBits[0]
	}
	t.countRefs()
	return t.loadRules()
}

func (t *table) existing() (names []string) {
	for name, s := range t.byName {
		if s.exists {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// listTables reads what exists under both names, without base chains.
func (t *table) listTables() (ours, other tableState, err error) {
	ours.name, other.name = tableName, handoverName
	err = t.conn.Tables(t.Family, func(found nfnl.Table, comment string) {
		for _, s := range []*tableState{&ours, &other} {
			if found.Name == s.name {
				s.exists, s.comment = true, comment
			}
		}
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return ours, other, err
}

func (t *table) listBaseChains(s *tableState) error {
	if s.hooks = nil; !s.exists {
		return nil
	}
	return t.conn.Chains(nfnl.Table{Family: t.Family, Name: s.name}, func(c nfnl.Chain) {
		if c.Hook >= 0 {
			s.hooks = append(s.hooks, c.Name)
		}
	})
}

func (t *table) loadSets() error {
	mismatch, err := t.listSets(t.find)
	if err != nil {
		return err
	}
	for _, s := range t.base() {
		if !s.exists {
			return errSchemaMismatch{"it lacks the set " + s.name}
		}
	}
	if mismatch == nil {
		mismatch = errors.Join(t.checkOutcomeSets(), t.checkRetriesSet())
	}
	return mismatch
}

// listSets finds out which sets exist, and why others are not those of this version.
func (t *table) listSets(find func(name string) *set) (mismatch, err error) {
	err = t.conn.Dump(t.request(unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, nil), func(b []byte) {
		b = b[4:]
		if nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_TABLE)) != t.Name {
			return
		}
		name := nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_NAME))
		s := find(name)
		if s == nil {
			mismatch = errSchemaMismatch{"its set " + name + " is unknown"}
			return
		}
		if nfnl.Uint32(nfnl.Attr(b, unix.NFTA_SET_KEY_TYPE)) != typeOf(s.key) ||
			nfnl.Uint32(nfnl.Attr(b, unix.NFTA_SET_KEY_LEN)) != uint32(padded(s.key)) ||
			nfnl.Uint32(nfnl.Attr(b, unix.NFTA_SET_DATA_TYPE)) != typeOf(s.data) ||
			nfnl.Uint32(nfnl.Attr(b, unix.NFTA_SET_FLAGS)) != s.flags ||
			(nfnl.Attr(b, nftaSetExpr) != nil) != s.counters {
			mismatch = errSchemaMismatch{"its set " + name + " has another type"}
			return
		}
		s.exists = true
		if n := nfnl.Attr(b, nftaSetCount); n != nil {
			s.count, s.counted = int(nfnl.Uint32(n)), true
		}
		if size := nfnl.Uint32(nfnl.Attr(nfnl.Attr(b, unix.NFTA_SET_DESC), unix.NFTA_SET_DESC_SIZE)); t.fixedSizes && size != s.size {
			mismatch = errSchemaMismatch{fmt.Sprintf("its set %s has room for %d elements, not %d", name, size, s.size)}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: list sets: %w", nfnl.Hint(err))
	}
	return mismatch, nil
}
