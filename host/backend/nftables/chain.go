package nftables

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// chain is a chain of a table. hook is -1 unless it is a base chain.
type chain struct {
	name     string
	hook     int
	priority int
	rules    []*ruleBuilder
	filter   bool // a base chain of type filter, not nat
	counts   bool // a base chain that counts outcomes
	// lazy builds the rules of a chain of which there can be thousands. They follow from its name and variant.
	lazy    func() []*ruleBuilder
	variant string
}

func lazyChain(name, variant string, rules func() []*ruleBuilder) chain {
	return chain{name: name, hook: -1, lazy: rules, variant: "variant " + variant}
}

// of returns the chain as one of a table.
func (c *chain) of(t nfnl.Table) *nfnl.Chain {
	typ := "nat"
	if c.filter {
		typ = "filter"
	}
	return &nfnl.Chain{Table: t, Name: c.name, Hook: c.hook, Priority: c.priority, Type: typ}
}

// encode returns the rules, and what tells them from other rules of the chain.
func (c *chain) encode() (rules [][]byte, identity string, err error) {
	list, all := c.rules, []byte(nil)
	if c.lazy != nil {
		list = c.lazy()
	}
	for _, r := range list {
		e, err := r.encode()
		if err != nil {
			return nil, "", fmt.Errorf("nftables: chain %s: %w", c.name, err)
		}
		rules = append(rules, e)
		if c.lazy == nil {
			all = append(binary.NativeEndian.AppendUint32(all, uint32(len(e))), e...)
		}
	}
	if c.lazy != nil {
		return rules, c.variant, nil
	}
	return rules, string(all), nil
}

// learns reports whether it is a base chain that balanced connections pass.
func (c *chain) learns() bool {
	return !c.filter && !c.counts && (c.hook == unix.NF_INET_POST_ROUTING || c.hook == unix.NF_INET_LOCAL_IN)
}

// chainPrerouting is the base chain of a table that forwards, in all versions.
const chainPrerouting = "prerouting"

// Chains that balanced connections pass.
const (
	chainPostNAT       = "postnat"
	chainLearnAffinity = "learn_affinity"
)

type rulesetBuilder struct {
	*schema
	bit uint32
}

func (r rulesetBuilder) rule() *ruleBuilder { return newRule(r.family) }

func (r rulesetBuilder) hook(name string, hook, priority int, rules ...*ruleBuilder) chain {
	return chain{name: name, hook: hook, priority: priority, rules: rules}
}

// chain leaves out rules whose sets do not exist.
func (r rulesetBuilder) chain(name string, rules ...*ruleBuilder) chain {
	rules = slices.DeleteFunc(rules, func(w *ruleBuilder) bool {
		return slices.ContainsFunc(w.needs, func(n *set) bool { return !n.exists })
	})
	return chain{name: name, hook: -1, rules: rules}
}

// hookPoint says where a base chain sees packets.
func hookPoint(hook, priority int) string {
	if hook < 0 {
		return "no hook"
	}
	return fmt.Sprintf("hook %d, priority %d", hook, priority)
}

// Names of chains that connections pass once IPVS has chosen their endpoint lead to the chains of the same names
// without the prefix.
const ipvsPrefix = "ipvs_"

// Chains that count outcomes.
const (
	chainCountAttempt    = "count_attempt"
	chainCountAnswer     = "count_answer"
	chainRememberReply   = "remember_reply"
	chainRememberRefusal = "remember_refusal"
)

// outcomeChainNames are all of them, in the order in which they can be deleted.
var outcomeChainNames = []string{
	"outcomes_postrouting", "outcomes_input", "outcomes_prerouting", "outcomes_output",
	ipvsPrefix + chainCountAttempt, ipvsPrefix + chainCountAnswer,
	chainCountAttempt, chainCountAnswer, chainRememberReply, chainRememberRefusal,
}

// Timeouts of a connection in the set of flows.
const (
	// replyMemory is longer than the two seconds after which conntrack sets the status assured for a UDP flow with replies.
	replyMemory = 3 * time.Second
	// Those of conntrack for connections without a reply. Each further refusal begins them anew.
	refusalMemoryUDP = 30 * time.Second
	refusalMemory    = 2 * time.Minute
)

const (
	resetsName = "reset_connections"
	chainReset = "reset_connection"
)

// chainLocalhost refuses what the proxy for NodePorts at loopback addresses does not serve.
const chainLocalhost = "localhost_input"

// verdicts returns the rules for pools without endpoints.
func (r rulesetBuilder) verdicts(l lookup, scope int) []*ruleBuilder {
	ss, refuse := &r.lookups[l].scopes[scope], "refuse"
	if l == byNodePort && scope == inside { // the node's own connections are inside
		refuse = chainRefuseNodePort
	}
	return []*ruleBuilder{
		r.rule().frontendKey(l).in(ss.rejected).gotoChain(refuse),
		r.rule().frontendKey(l).in(ss.dropped).drop(),
	}
}

const chainRefuseNodePort = "refuse_nodeport"
