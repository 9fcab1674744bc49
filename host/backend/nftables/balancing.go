package nftables

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Balancing is how the tables distribute a frontend's connections among its endpoints: Slots, by rules that draw one, or
// HandOff, by leaving that to IPVS.
type Balancing interface {
	// Caps returns what can be represented.
	Caps() plan.Caps
	traits() traits
	// acceptsComment reports whether a table with a comment is one of this version with this balancing.
	acceptsComment(string) bool
	// guardedVIPs returns the addresses to guard when the tables are read.
	guardedVIPs() map[netip.Addr]bool
	balancingSets
	balancingRules
}

type traits struct {
	// tableComment identifies tables of this version with this balancing.
	tableComment string
	// dispatches is how often a connection passes the dispatch chain until it has an endpoint or is dropped.
	dispatches int
	// remembersResets: the rules balance TCP connections that conntrack does not know, except those that ResetTCP names.
	// Otherwise the rules reset all of them.
	remembersResets bool
	// exclusive: another table must not see the packets that this one sees.
	exclusive bool
}

// balancingSets is the part of Balancing about elements.
type balancingSets interface {
	addSets(s *schema, l lookup, scope int, ss *scopeSets)
	// encodePool returns the elements of a pool; endpoints keep the slots that they have before where possible.
	encodePool(f *plan.Frontend, p *plan.Pool, scope int, before packedSlots) (poolElements, error)
	// changePool writes in which of the sets the frontend is.
	changePool(x *tx, ss *scopeSets, key []byte, now, want *poolElements)
	// changeEndpoints writes the endpoints. It commits when the transaction is full.
	changeEndpoints(x *tx, ss *scopeSets, key []byte, now, want packedSlots) error
}

// balancingRules is the part of Balancing about rules.
type balancingRules interface {
	// entryRules begin the chain that all packets to frontends pass.
	entryRules(r rulesetBuilder) []*ruleBuilder
	// dispatch returns the rules that lead a frontend to its endpoints or its verdict, and the chains that these use.
	dispatch(r rulesetBuilder, l lookup, scope int) ([]*ruleBuilder, []chain)
	// balanced completes a rule that leads connections which have their endpoint to a chain.
	balanced(rule *ruleBuilder, target string) *ruleBuilder
	chains(r rulesetBuilder) []chain
}
