package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// errSchemaMismatch is why a table under one of our names has to be replaced.
type errSchemaMismatch struct{ reason string }

func (e errSchemaMismatch) Error() string { return e.reason }

// IsForeignTable reports whether Read failed because a table with one of our names was written by another program, or by
// another version or mode of sluice. Apply replaces such a table.
func IsForeignTable(err error) bool {
	var mismatch errSchemaMismatch
	return errors.As(err, &mismatch)
}

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
	t.name = name
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
		if strings.HasSuffix(name, "slots") || name == t.hairpin.name {
			continue // these mostly follow from others
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
	if err := t.loadHairpins(); err != nil {
		return err
	}
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

// tableState is what the kernel has under one of the two names.
type tableState struct {
	name    string
	exists  bool
	comment string
	hooks   []string // names of its base chains
}

// forwards reports whether new connections pass the table.
func (s *tableState) forwards() bool { return slices.Contains(s.hooks, chainPrerouting) }

// listTables reads what exists under both names, without base chains.
func (t *table) listTables() (ours, other tableState, err error) {
	ours.name, other.name = tableName, handoverName
	err = t.conn.Dump(t.request(unix.NFT_MSG_GETTABLE, 0, nil), func(b []byte) {
		for _, s := range []*tableState{&ours, &other} {
			if b[0] == t.nfproto && nfnl.Text(nfnl.Attr(b[4:], unix.NFTA_TABLE_NAME)) == s.name {
				s.exists, s.comment = true, nfnl.Comment(nfnl.Attr(b[4:], nftaTableUserdata))
			}
		}
	})
	if err == unix.EAFNOSUPPORT || err == unix.EOPNOTSUPP || err == unix.ENOENT {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("nftables: list tables: %w", nfnl.Hint(err))
	}
	return ours, other, err
}

func (t *table) listBaseChains(s *tableState) error {
	if s.hooks = nil; !s.exists {
		return nil
	}
	t.name = s.name
	err := t.conn.Dump(t.request(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil), func(b []byte) {
		b = b[4:]
		if nfnl.Text(nfnl.Attr(b, unix.NFTA_CHAIN_TABLE)) == s.name && nfnl.Attr(b, unix.NFTA_CHAIN_HOOK) != nil {
			s.hooks = append(s.hooks, nfnl.Text(nfnl.Attr(b, unix.NFTA_CHAIN_NAME)))
		}
	})
	if t.name = tableName; err != nil {
		return fmt.Errorf("nftables: list chains: %w", nfnl.Hint(err))
	}
	return nil
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
		if nfnl.Text(nfnl.Attr(b, unix.NFTA_SET_TABLE)) != t.name {
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

// loadElements reads a set. If the kernel reports the number of elements, that is checked.
func (t *table) loadElements(s *set) error {
	put := t.loader(s)
	if put == nil {
		return nil
	}
	for try := 0; ; try++ {
		list, err := t.dumpSettled(s)
		if err != nil {
			return err
		}
		want, ok, err := t.count(s)
		if err != nil {
			return err
		}
		if ok && want != len(list) && try < 3 {
			continue
		}
		return put(list)
	}
}

// errForeignElement means that a set has an element that this version does not write.
func errForeignElement(s *set) error {
	return errSchemaMismatch{"its set " + s.name + " has an unknown element"}
}

// frontendOf decodes the key of a set of frontends and returns the rest of the key.
func (t *table) frontendOf(i lookup, key []byte) (*elements, []byte, bool) {
	k, rest, ok := t.frontendKeyOf(i, key)
	if !ok {
		return nil, nil, false
	}
	h := t.frontends[k]
	if h == nil {
		h = &elements{}
		t.frontends[k] = h
	}
	return h, rest, true
}

func (t *table) frontendKeyOf(i lookup, key []byte) (k plan.Key, rest []byte, ok bool) {
	addr := netip.IPv4Unspecified()
	if t.addr.bytes == 16 {
		addr = netip.IPv6Unspecified()
	}
	if i == byAddress {
		if len(key) < t.addr.bytes {
			return k, nil, false
		}
		addr, _ = netip.AddrFromSlice(key[:t.addr.bytes])
		key = key[t.addr.bytes:]
	}
	if len(key) < 8 {
		return k, nil, false
	}
	return plan.Key{Addr: addr, Port: binary.BigEndian.Uint16(key[4:]), Protocol: protocol(key[0])}, key[8:], true
}

// addrPort decodes the data of a map.
func (t *table) addrPort(b []byte) (netip.AddrPort, bool) {
	n := t.addr.bytes
	if len(b) < n+2 {
		return netip.AddrPort{}, false
	}
	a, ok := netip.AddrFromSlice(b[:n])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n:])), ok
}
