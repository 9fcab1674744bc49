package ipvs

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/sluice-proxy/sluice/host/util/nfnl/nfnltest"
)

// fault makes one message to the kernel fail.
type fault struct {
	after int
	lost  bool
	dead  bool // every later message fails too
	fired bool
}

var errInjected = errors.New("injected")

// send counts one message, and sends it unless it is the one to fail.
func (f *fault) send(send func() error) error {
	switch {
	case f != nil && f.dead && f.fired:
		return errInjected
	case f == nil || f.fired:
		return send()
	}
	if f.after--; f.after > 0 {
		return send()
	}
	f.fired = true
	if f.lost {
		_ = send()
	}
	return errInjected
}

// faultInjector is shared by all connections of a backend to the kernel.
type faultInjector struct {
	fault   *fault
	netlink nfnltest.Fault // on the way to nf_tables
}

type faultyIPVS struct {
	ipvsAPI
	injector *faultInjector
}

func (v faultyIPVS) do(o op) error {
	return v.injector.fault.send(func() error { return v.ipvsAPI.do(o) })
}

type faultyLinks struct {
	linkAPI
	injector *faultInjector
}

func (l faultyLinks) addAddr(a netip.Addr) error {
	return l.injector.fault.send(func() error { return l.linkAPI.addAddr(a) })
}

func (l faultyLinks) delAddr(a netip.Addr) error {
	return l.injector.fault.send(func() error { return l.linkAPI.delAddr(a) })
}

func (l faultyLinks) ensureLink() (bool, error) {
	made, err := l.linkAPI.ensureLink()
	if made && err == nil && l.injector.fault != nil && !l.injector.fault.fired {
		l.injector.fault.after-- // counted, but it never fails: the next message does
	}
	return made, err
}

type faultyRules struct {
	rulesBackend
	injector *faultInjector
}

func (c faultyRules) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.rulesBackend.Apply(ctx, next, d) })
}

func (c faultyRules) Guard(ctx context.Context, add, del []netip.Addr) (backend.Report, error) {
	return c.transact(func() (backend.Report, error) { return c.rulesBackend.Guard(ctx, add, del) })
}

func (c faultyRules) transact(do func() (backend.Report, error)) (backend.Report, error) {
	f := c.injector.fault
	switch {
	case f != nil && f.dead && (f.fired || f.after == 1):
		f.fired = true
		return backend.Report{}, errInjected
	case f == nil || f.fired:
		return do()
	}
	disarm := c.injector.netlink.Arm(max(f.after, 1), f.lost)
	r, err := do()
	f.fired = disarm()
	f.after -= r.Messages
	return r, err
}

// inject lets faults be injected between a backend and the kernel.
func inject(b *Backend) *faultInjector {
	f := &faultInjector{}
	_ = b.rules.Close()
	if err := b.openRules(func(t nfnl.Transport) nfnl.Transport {
		f.netlink.Transport = t
		return &f.netlink
	}); err != nil {
		panic(err)
	}
	b.ipvs, b.links, b.rules = faultyIPVS{b.ipvs, f}, faultyLinks{b.links, f}, faultyRules{b.rules, f}
	return f
}
