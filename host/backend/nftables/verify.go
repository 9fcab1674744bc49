package nftables

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// loadRules checks that the chains and rules are those for the existing sets.
func (t *table) loadRules() error {
	have, hooks, err := t.dumpRules()
	if err != nil {
		return err
	}
	for name := range have {
		if c, ok := parseLearnChain(name); ok {
			count(&t.affinity, t.affinity.learn, c, 0) // also if no frontend uses it
		}
		if c, ok := parseFindChain(name); ok {
			count(&t.affinity, t.affinity.find, c, 0)
		}
	}
	for _, name := range offloadChainNames { // SyncOffload checks them
		if _, ok := have[name]; ok {
			t.offloads = true
			delete(have, name)
		}
	}
	want := t.wantedChains()
	for _, c := range want {
		rules, ok := have[c.name]
		if !ok {
			return errSchemaMismatch{"it lacks the chain " + c.name}
		}
		encoded, identity, err := c.encode()
		if err != nil {
			return err
		}
		if len(rules) != len(encoded) {
			return errSchemaMismatch{fmt.Sprintf("its chain %s has %d rules, not %d", c.name, len(rules), len(encoded))}
		}
		for i, e := range encoded {
			if got := fingerprint(e); got != rules[i] {
				return errSchemaMismatch{fmt.Sprintf("rule %d of its chain %s is %s, not %s", i+1, c.name, rules[i], got)}
			}
		}
		if got, want := hooks[c.name], hookPoint(c.hook, c.priority); got != want {
			return errSchemaMismatch{fmt.Sprintf("its chain %s is at %s, not %s", c.name, got, want)}
		}
		t.chains[c.name] = identity
	}
	if len(have) != len(want) {
		return errSchemaMismatch{fmt.Sprintf("it has %d chains, not %d", len(have), len(want))}
	}
	return nil
}

// dumpRules returns a fingerprint of each rule, by chain, and where the chains see packets.
func (t *table) dumpRules() (have map[string][]string, hooks map[string]string, err error) {
	have, hooks = map[string][]string{}, map[string]string{}
	err = t.conn.Chains(t.Table, func(c nfnl.Chain) { have[c.Name], hooks[c.Name] = nil, hookPoint(c.Hook, c.Priority) })
	if err != nil {
		return nil, nil, err
	}
	return have, hooks, t.conn.Rules(t.Table, "", func(r nfnl.Rule) { have[r.Chain] = append(have[r.Chain], fingerprint(r.Exprs)) })
}

// fingerprint returns what a rule's expressions have in common as we write them and as the kernel returns them: the
// names of expressions, sets and chains, and some numbers.
func fingerprint(exprs []byte) string {
	s := ""
	for name, data := range nfnl.Exprs(exprs) {
		if name == "byteorder" {
			continue // nft adds one without effect when it loads its own listing
		}
		s += " " + name
		switch name {
		case "lookup":
			s += "@" + nfnl.Text(nfnl.Attr(data, unix.NFTA_LOOKUP_SET))
		case "dynset":
			s += "@" + nfnl.Text(nfnl.Attr(data, unix.NFTA_DYNSET_SET_NAME))
		case "immediate":
			code, chain, _ := nfnl.Verdict(data)
			s += fmt.Sprintf(" %d %s", code, chain)
		case "hash":
			s += fmt.Sprintf(" %d %d", nfnl.Uint32(nfnl.Attr(data, unix.NFTA_HASH_MODULUS)), nfnl.Uint32(nfnl.Attr(data, unix.NFTA_HASH_SEED)))
		case "numgen":
			s += fmt.Sprintf(" %d", nfnl.Uint32(nfnl.Attr(data, unix.NFTA_NG_MODULUS)))
		case "bitwise":
			s += fmt.Sprintf(" %x", nfnl.Attr(nfnl.Attr(data, unix.NFTA_BITWISE_XOR), unix.NFTA_DATA_VALUE))
		}
	}
	return s
}
