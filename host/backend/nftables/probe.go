package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Feature is a feature of the kernel's nf_tables that the ruleset uses, with the result of Probe.
type Feature struct {
	Name     string
	Kernel   string // where it comes from: a version or a configuration symbol
	For      string // what sluice needs it for
	Required bool   // without it, sluice does not run or does not behave like kube-proxy
	Err      error  // nil: present; ErrNotTried: unknown
}

// ErrNotTried is the result for features that can only be tested by committing a ruleset.
var ErrNotTried = errors.New("not tried: needs a network namespace of its own (CAP_SYS_ADMIN)")

// Probe tests features in a new network namespace, which does not outlive the call. If the caller may not create one,
// it tests in the current one, with transactions that the kernel undoes: they never take effect. own reports which of
// the two it was.
func Probe(ctx context.Context) (features []Feature, own bool, err error) {
	conn, err := nfnl.OpenIsolated()
	own = err == nil
	if errors.Is(err, unix.EPERM) {
		conn, err = nfnl.Open(0, nfnl.DefaultSendBuffer)
	}
	if err != nil {
		return nil, false, fmt.Errorf("nftables: probe: %w", nfnl.Hint(err))
	}
	defer conn.Close()
	for _, t := range trials() {
		if err := ctx.Err(); err != nil {
			return nil, own, fmt.Errorf("nftables: probe: %w", err)
		}
		f := t.Feature
		switch {
		case t.needsCommit && !own:
			f.Err = ErrNotTried
		case t.wholeRuleset:
			f.Err = applyProbePlan(ctx, conn, features)
		default:
			f.Err = t.run(conn, own)
		}
		features = append(features, f)
	}
	return features, own, nil
}

// trial is a feature and its test.
type trial struct {
	Feature
	family       model.Family
	needsCommit  bool // the kernel checks it at commit
	wholeRuleset bool // the test is a whole ruleset
	build        func(p *prober)
	check        func(p *prober) error // tests the committed ruleset; may be nil
}

// prober builds the ruleset of a trial.
type prober struct {
	*table
	rules rulesetBuilder
	b     *nfnl.Batch
	sets  uint32
	err   error
}

func (p *prober) set(sets ...*set) {
	for _, s := range sets {
		p.sets++
		s.exists = true
		p.newSet(p.b, s, p.sets)
	}
}

func (p *prober) add(c chain) {
	p.b.NewChain(c.of(p.Table))
	if err := p.writeRules(p.b, c); err != nil {
		p.err = errors.Join(p.err, err)
	}
}

// prerouting creates a chain that sees packets where Services do.
func (p *prober) prerouting(rules ...*ruleBuilder) {
	p.add(p.rules.hook("prerouting", unix.NF_INET_PRE_ROUTING, backend.NATPriority, rules...))
}

// probeName replaces tableName, which may be in use.
const probeName = "sluice-probe"

// run tests one feature. With commit, it commits the ruleset and deletes it.
func (t *trial) run(conn *nfnl.Conn, commit bool) error {
	p := newProber(t.family, conn)
	p.b.NewTable(unix.NLM_F_EXCL, p.Table, 0, "")
	if t.build != nil {
		t.build(p)
	}
	if p.err != nil {
		return p.err
	}
	if !commit {
		return p.b.DryRun(p.Family)
	}
	if err := p.b.Commit(); err != nil {
		return err
	}
	var found error
	if t.check != nil {
		found = t.check(p)
	}
	// Not in the same transaction: the kernel would not check the rules of a table that it also deletes.
	p = newProber(t.family, conn)
	p.b.DeleteTable(p.Table)
	return errors.Join(found, p.b.Commit())
}

func newProber(f model.Family, conn *nfnl.Conn) *prober {
	t := newTable(f, conn, Slots{}, AffinityLimits{})
	t.Name = probeName
	return &prober{table: t, rules: rulesetBuilder{t.schema, 1 << 14}, b: nfnl.NewBatch(conn)}
}

// applyProbePlan programs a plan that uses everything, in a namespace of its own.
func applyProbePlan(ctx context.Context, conn *nfnl.Conn, known []Feature) error {
	families := []model.Family{model.IPv4, model.IPv6}
	for _, f := range known {
		if f.Name == featureIPv6 && f.Err != nil {
			families = families[:1]
		}
	}
	b := &Backend{
		conn: conn, now: func() time.Time { return time.Time{} }, log: slog.New(slog.DiscardHandler),
		balancing: Slots{},
		tables:    [2]*table{newTable(model.IPv4, conn, Slots{}, AffinityLimits{}), newTable(model.IPv6, conn, Slots{}, AffinityLimits{})},
	}
	if _, err := b.Apply(ctx, probePlan(families), nil); err != nil {
		return err
	}
	p, err := b.Read(ctx)
	if err == nil && len(p.Frontends) == 0 {
		err = errors.New("nftables: probe: the ruleset reads back empty")
	}
	return err
}

// countTrial is about the time of a restart: sets whose elements can be counted are fetched by key, others are dumped,
// which has quadratic cost.
func countTrial() trial {
	frontends := func(p *prober) *set { return p.lookups[byAddress].frontends }
	return trial{
		Feature: Feature{Name: "element counts of sets", Kernel: "6.16", For: "a fast restart with 100,000 endpoints and more"},
		family:  model.IPv4,
		build:   func(p *prober) { p.set(frontends(p)) },
		check: func(p *prober) error {
			n, ok, err := p.count(frontends(p))
			switch {
			case err != nil:
				return err
			case !ok:
				return errors.New("the kernel does not report it")
			case n != 0:
				return fmt.Errorf("the kernel reports %d elements in an empty set", n)
			}
			return nil
		},
	}
}

const (
	featureIPv6       = "tables of IPv6"
	featureFlowtables = "flowtables"
)

// trials returns all trials, dependent ones later.
func trials() []trial {
	required := func(name, kernel, use string, build func(p *prober)) trial {
		return trial{Feature: Feature{Name: name, Kernel: kernel, For: use, Required: true}, family: model.IPv4, build: build}
	}
	optional := func(name, kernel, use string, f model.Family, build func(p *prober)) trial {
		return trial{Feature: Feature{Name: name, Kernel: kernel, For: use}, family: f, build: build}
	}
	late := func(t trial) trial { t.needsCommit = true; return t }
	services := "every Service"
	return []trial{
		required("tables", "CONFIG_NF_TABLES_IPV4", services, nil),
		optional(featureIPv6, "CONFIG_NF_TABLES_IPV6", "Services with IPv6 addresses", model.IPv6, nil),
		required("chains of type nat", "CONFIG_NFT_NAT", services, func(p *prober) {
			p.prerouting()
			p.add(p.rules.hook("output", unix.NF_INET_LOCAL_OUT, backend.NATPriority))
			p.add(p.rules.hook("input", unix.NF_INET_LOCAL_IN, 100))
			p.add(p.rules.hook("postrouting", unix.NF_INET_POST_ROUTING, 100))
		}),
		required("concatenated keys", "4.1", services, func(p *prober) {
			p.set(p.lookups[byAddress].frontends)
			p.prerouting(p.rules.rule().frontendKey(byAddress).in(p.lookups[byAddress].frontends).drop())
		}),
		required("random numbers and DNAT to a map", "4.9, CONFIG_NFT_NUMGEN", services, func(p *prober) {
			slots := p.lookups[byAddress].scopes[inside].slots
			p.set(slots)
			p.prerouting(p.rules.rule().frontendKey(byAddress).random(8).dnat(slots))
		}),
		required("hashes", "4.9, CONFIG_NFT_HASH", "policies that balance by the client's address", func(p *prober) {
			slots := p.lookups[byAddress].scopes[inside].slots
			p.set(slots)
			p.prerouting(p.rules.rule().frontendKey(byAddress).hash(8, 1).dnat(slots))
		}),
		required("connection tracking", "CONFIG_NFT_CT", services, func(p *prober) {
			p.add(p.rules.hook("postrouting", unix.NF_INET_POST_ROUTING, 100,
				p.rules.rule().ctDNAT().originalDst().emit(&expr.Counter{})))
		}),
		required("masquerading", "CONFIG_NFT_MASQ", "connections from outside the cluster, hairpins", func(p *prober) {
			p.add(p.rules.hook("postrouting", unix.NF_INET_POST_ROUTING, 100, p.rules.rule().hasMark(p.rules.bit).xorMark(p.rules.bit).masquerade()))
		}),
		late(required("reject in prerouting", "5.9, CONFIG_NFT_REJECT", "Services without endpoints, other ports of a ClusterIP", func(p *prober) {
			p.prerouting(p.rules.rule().reject())
		})),
		required("lookup of local addresses", "4.10, CONFIG_NFT_FIB_IPV4", "externalTrafficPolicy Local", func(p *prober) {
			p.prerouting(p.rules.rule().fromNode().drop())
		}),
		required("interval sets", "CONFIG_NF_TABLES", "distinguishing Pods from other sources, ServiceCIDRs", func(p *prober) {
			p.set(p.podSources, p.podInterfaces)
			p.prerouting(p.rules.rule().saddr().in(p.podSources).drop(), p.rules.rule().iifname().in(p.podInterfaces).drop())
		}),
		required("masked addresses in concatenated keys", "4.1", "loadBalancerSourceRanges", func(p *prober) {
			const bits = 24
			s := p.lookups[byAddress].ranges[bits]
			p.set(s)
			p.prerouting(p.rules.rule().frontendKey(byAddress).saddrPrefix(bits).in(s).drop())
		}),
		required("dynamic maps with timeouts", "5.4", "session affinity", func(p *prober) {
			a := p.clientsSet(clientSet{})
			p.set(a)
			p.add(p.rules.hook("postrouting", unix.NF_INET_POST_ROUTING, 100,
				p.rules.rule().originalSrc().groupOfID().change(a, unix.NFT_DYNSET_OP_UPDATE, time.Hour),
				p.rules.rule().originalSrc().groupOfID().change(a, dynsetDelete, 0)))
		}),
		optional("counters of elements", "5.7", "outcomes of connections, for policies and metrics", model.IPv4, func(p *prober) {
			p.set(p.outcomes.all()...)
			c := p.rules.hook("prerouting", unix.NF_INET_PRE_ROUTING, outcomesPriority,
				p.rules.rule().ctStatus(ctStatusAssured).ret(),
				p.rules.rule().source().in(p.outcomes.counters[answered]),
				p.rules.rule().ctFlow().change(p.outcomes.flows, unix.NFT_DYNSET_OP_ADD, replyMemory))
			c.filter = true
			p.add(c)
		}),
		optional(featureFlowtables, "CONFIG_NF_FLOW_TABLE, CONFIG_NFT_FLOW_OFFLOAD", "policies with a trafficHint", model.IPv4, func(p *prober) {
			p.set(p.lookups[byAddress].longLived)
			p.b.NewFlowtable(p.Table, flowtable, []string{})
			base, flow := p.rules.offloadChains()[0], p.rules.offloadChains()[1]
			p.b.NewChain(flow.of(p.Table))
			p.add(base)
			if err := p.writeRules(p.b, flow); err != nil {
				p.err = err
			}
		}),
		late(countTrial()),
		{Feature: Feature{Name: "a whole ruleset", Kernel: "all of the above together", For: services, Required: true}, needsCommit: true, wholeRuleset: true},
	}
}
