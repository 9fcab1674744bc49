package rules

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
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
		if got := hooks[c.name]; got != c.hooked() {
			return errSchemaMismatch{fmt.Sprintf("its chain %s is at %s, not %s", c.name, got, c.hooked())}
		}
		t.chains[c.name] = identity
	}
	if len(have) != len(want) {
		return errSchemaMismatch{fmt.Sprintf("it has %d chains, not %d", len(have), len(want))}
	}
	return nil
}

// hookPoint is where a base chain sees packets. That of other chains is the zero value.
type hookPoint struct {
	base           bool
	hook, priority int32
}

func (h hookPoint) String() string {
	if !h.base {
		return "no hook"
	}
	return fmt.Sprintf("hook %d, priority %d", h.hook, h.priority)
}

func (c *chain) hooked() hookPoint {
	if c.hook < 0 {
		return hookPoint{}
	}
	return hookPoint{true, int32(c.hook), int32(c.priority)}
}

// dumpRules returns a fingerprint of each rule, by chain, and where the base chains are.
func (t *table) dumpRules() (map[string][]string, map[string]hookPoint, error) {
	have, hooks := map[string][]string{}, map[string]hookPoint{}
	err := t.conn.Dump(t.request(unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, nil), func(b []byte) {
		if nfnl.Text(nfnl.Attr(b[4:], unix.NFTA_CHAIN_TABLE)) == t.name {
			name := nfnl.Text(nfnl.Attr(b[4:], unix.NFTA_CHAIN_NAME))
			have[name] = nil
			if h := nfnl.Attr(b[4:], unix.NFTA_CHAIN_HOOK); h != nil {
				hooks[name] = hookPoint{true, int32(nfnl.Uint32(nfnl.Attr(h, unix.NFTA_HOOK_HOOKNUM))), int32(nfnl.Uint32(nfnl.Attr(h, unix.NFTA_HOOK_PRIORITY)))}
			}
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("nftables: list chains: %w", nfnl.Hint(err))
	}
	err = t.conn.Dump(t.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, nil), func(b []byte) {
		if b = b[4:]; nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_TABLE)) == t.name {
			c := nfnl.Text(nfnl.Attr(b, unix.NFTA_RULE_CHAIN))
			have[c] = append(have[c], fingerprint(nfnl.Attr(b, unix.NFTA_RULE_EXPRESSIONS)))
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("nftables: list rules: %w", nfnl.Hint(err))
	}
	return have, hooks, nil
}

// fingerprint returns what a rule's expressions have in common as we write them and as the kernel returns them: the
// names of expressions, sets and chains, and some numbers.
func fingerprint(exprs []byte) string {
	s := ""
	for _, e := range nfnl.Attrs(exprs) {
		name, data := nfnl.Text(nfnl.Attr(e, unix.NFTA_EXPR_NAME)), nfnl.Attr(e, unix.NFTA_EXPR_DATA)
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
			v := nfnl.Attr(nfnl.Attr(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
			s += fmt.Sprintf(" %d %s", int32(nfnl.Uint32(nfnl.Attr(v, unix.NFTA_VERDICT_CODE))), nfnl.Text(nfnl.Attr(v, unix.NFTA_VERDICT_CHAIN)))
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
