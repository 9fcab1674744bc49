package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

const (
	// nft does not parse a flowtable or chain with the name offload, a word of its language.
	flowtable        = "long_lived_flows"
	chainOffload     = "offload_forward"
	chainOffloadFlow = "offload_flow"
	// offloadPriority is behind the chains of other programs: a packet that one of them drops offloads nothing.
	offloadPriority = 300
	// offloadPackets is how many packets a connection has, in both directions, before it is offloaded: those of KEP-4963.
	offloadPackets = 20
)

// offloadChainNames are those of the chains that SyncOffload creates.
var offloadChainNames = []string{chainOffload, chainOffloadFlow}

// offloadChains returns the chains that put connections in the flowtable. Reading the number of packets makes the kernel count
// those of new connections (net.netfilter.nf_conntrack_acct).
func (r rulesetBuilder) offloadChains() []chain {
	base := r.hook(chainOffload, unix.NF_INET_FORWARD, offloadPriority,
		r.rule().ctEstablished().ctDNAT().ctPacketsAbove(offloadPackets).gotoChain(chainOffloadFlow))
	base.filter = true
	var add []*ruleBuilder
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		add = append(add,
			r.rule().ctProtocol(proto).originalKey(byAddress).in(r.lookups[byAddress].longLived).flowAdd(flowtable),
			r.rule().ctProtocol(proto).originalDst().in(r.nodePortAddrs).ctProtocol(proto).
				originalKey(byNodePort).in(r.lookups[byNodePort].longLived).flowAdd(flowtable))
	}
	return []chain{base, r.chain(chainOffloadFlow, add...)}
}

// SyncOffload implements backend.Offloader. The flowtable and its chains have transactions of their own: what the kernel refuses
// of them changes nothing for Services. They exist only while there are frontends with LongLived.
func (b *Backend) SyncOffload(ctx context.Context, filters func() (string, error)) backend.Offload {
	b.mu.Lock()
	frontends, idle := b.longLived()
	b.mu.Unlock()
	var reason string
	var all []string
	if frontends > 0 { // without the lock: it lists the kernel
		var err error
		if reason, err = filters(); err != nil {
			reason = fmt.Sprintf("it is not known whether other programs filter packets: %v", err)
		}
		if all, err = links(b.netns); err != nil {
			reason = err.Error()
		} else if len(all) == 0 && reason == "" {
			reason = "there is no link of type Ethernet"
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.inSync || idle {
		b.offload.Frontends = frontends
		return b.offload
	}
	used := all[:min(len(all), nfnl.MaxFlowtableLinks)]
	now := backend.Offload{Frontends: frontends, Failed: b.offload.Failed, Reason: reason}
	var errs []error
	for _, t := range b.tables {
		want := reason == "" && t.longLived > 0 && t.forwards()
		if err := t.syncOffload(want, used); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t, err))
			now.Failed++
		}
	}
	if err := errors.Join(errs...); err != nil {
		now.Reason = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if frontends > 0 && now.Reason == "" {
		now.Links, now.Others = len(used), len(all)-len(used)
	}
	b.offload = now
	return now
}

// longLived returns the number of frontends with LongLived, and whether there is nothing to do.
func (b *Backend) longLived() (n int, idle bool) {
	idle = true
	for _, t := range b.tables {
		n += t.longLived
		idle = idle && t.longLived == 0 && !t.offloads
	}
	return n, idle
}

// syncOffload creates the flowtable and its chains, brings them up to date, or deletes them.
func (t *table) syncOffload(want bool, links []string) error {
	if !want && !t.offloads {
		return nil
	}
	now, err := t.loadOffload()
	if err != nil {
		return err
	}
	r := rulesetBuilder{t.schema, t.masqueradeBit}
	chains := r.offloadChains()
	same := now.exists
	for _, c := range chains {
		encoded, _, err := c.encode()
		if err != nil {
			return err
		}
		rules, ok := now.rules[c.name]
		same = same && ok && now.hooks[c.name] == hookPoint(c.hook, c.priority) &&
			slices.EqualFunc(encoded, rules, func(e []byte, have string) bool { return fingerprint(e) == have })
	}
	if want && same {
		return t.changeLinks(now.links, links)
	}
	if err := t.removeOffload(now); err != nil || !want {
		return err
	}
	t.offloads = true
	b := nfnl.NewBatch(t.conn)
	b.NewFlowtable(t.Table, flowtable, links)
	for _, c := range chains {
		b.NewChain(c.of(t.Table))
	}
	for _, c := range chains {
		encoded, _, err := c.encode()
		if err != nil {
			return err
		}
		for _, e := range encoded {
			b.NewRule(t.Table, c.name, e)
		}
	}
	return b.Commit()
}

// offloadState is what the kernel has of what syncOffload creates.
type offloadState struct {
	exists bool // the flowtable
	links  []string
	rules  map[string][]string // fingerprints, by chain
	hooks  map[string]string
}

func (t *table) loadOffload() (s offloadState, err error) {
	for range 3 { // others may write to nf_tables meanwhile
		s = offloadState{rules: map[string][]string{}, hooks: map[string]string{}}
		s.links, s.exists, err = t.conn.Flowtable(t.Table, flowtable)
		if err == nil {
			err = t.conn.Chains(t.Table, func(c nfnl.Chain) {
				if slices.Contains(offloadChainNames, c.Name) {
					s.rules[c.Name], s.hooks[c.Name] = nil, hookPoint(c.Hook, c.Priority)
				}
			})
		}
		for name := range s.rules {
			if err == nil {
				err = t.conn.Rules(t.Table, name, func(r nfnl.Rule) { s.rules[name] = append(s.rules[name], fingerprint(r.Exprs)) })
			}
		}
		if !errors.Is(err, nfnl.ErrInterrupted) {
			break
		}
	}
	return s, err
}

// changeLinks adds new links to the flowtable and removes others. The kernel has removed those that are gone (before 6.16).
func (t *table) changeLinks(now, want []string) error {
	b := nfnl.NewBatch(t.conn)
	if gone := without(now, want); len(gone) > 0 {
		b.RemoveLinks(t.Table, flowtable, gone)
	}
	if more := without(want, now); len(more) > 0 {
		b.NewFlowtable(t.Table, flowtable, more)
	}
	return b.Commit()
}

// removeOffload deletes what exists. Connections go by all rules again.
func (t *table) removeOffload(now offloadState) error {
	b := nfnl.NewBatch(t.conn)
	for _, name := range offloadChainNames {
		if _, ok := now.rules[name]; ok {
			b.DeleteRule(t.Table, name, 0)
		}
	}
	for _, name := range offloadChainNames {
		if _, ok := now.rules[name]; ok {
			b.DeleteChain(t.Table, name)
		}
	}
	if now.exists {
		b.DeleteFlowtable(t.Table, flowtable)
	}
	if err := b.Commit(); err != nil {
		return err
	}
	t.offloads = false
	return nil
}

// ctEstablished matches packets of connections that have been answered.
func (r *ruleBuilder) ctEstablished() *ruleBuilder { return r.ctState(expr.CtStateBitESTABLISHED) }

// ctPacketsAbove matches connections with more packets, in both directions.
func (r *ruleBuilder) ctPacketsAbove(n uint64) *ruleBuilder {
	return r.emit(
		&expr.Ct{Key: expr.CtKeyPKTS, Register: r.reg},
		&expr.Byteorder{SourceRegister: r.reg, DestRegister: r.reg, Op: expr.ByteorderHton, Len: 8, Size: 8},
		&expr.Cmp{Op: expr.CmpOpGt, Register: r.reg, Data: binary.BigEndian.AppendUint64(nil, n)},
	)
}

func (r *ruleBuilder) flowAdd(flowtable string) *ruleBuilder {
	return r.emit(&expr.FlowOffload{Name: flowtable})
}
