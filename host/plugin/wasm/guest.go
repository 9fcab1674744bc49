package wasm

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// guest is one instance of a plugin's module, with the settings that it has been configured with. After its first error it is
// closed and never called again.
type guest struct {
	p        *Plugin
	in       instance // nil: closed
	key      instanceKey
	lastUse  uint64 // see pool.uses
	repeated uint64 // decisions
	maxFuel  int64  // of a decision that is repeated
	selfTest bool   // calls have the time of a configuration
	call     call   // the current or last one
	request  []byte // of it
	encoder  abi.Encoder
	handles  map[string]handle
	ids      map[uint32]bool // of handles
	// handleBytes is the length of the texts of handles. reserved is the host memory that the handles take of the budget of all
	// plugins.
	handleBytes   int
	reserved      int64
	configureFuel int64 // used by the last handleOf
	fuelUsed      int64 // by the current call
}

// newGuest makes a new instance the current guest: instantiated and initialized.
func (p *Plugin) newGuest(key instanceKey) (*guest, error) {
	g := &guest{p: p, key: key}
	p.guest = g
	if err := g.start(); err != nil {
		p.discard()
		return nil, err
	}
	return g, nil
}

func (g *guest) start() (err error) {
	p := g.p
	p.initFuel = p.report.Module.InstantiateFuel()
	budget := p.limits.InitFuel - p.initFuel
	if budget < 0 {
		return fmt.Errorf("instantiate: tables, data and globals cost %d fuel, the budget is %d", p.initFuel, p.limits.InitFuel)
	}
	if g.in, err = p.code.engine.open(instanceOptions{leave: p.leave()}); err != nil {
		return err
	}
	p.instances++
	err = g.do(call{op: opStart, fuel: budget, limit: p.limits.InitTime})
	p.initFuel += g.call.used
	p.code.engine.forget()
	return err
}

// do makes a call, logs what the guest has logged, and returns its error.
func (g *guest) do(c call) error {
	g.call = c
	g.in.do(&g.call)
	if !g.key.second { // the first instance has logged it
		g.p.logLines(&g.call)
	}
	return g.call.err
}

// callDecide calls sluice_decide.
func (g *guest) callDecide(dec *abi.Decoder, req *abi.Request, h handle, resp *abi.Response) error {
	c := g.decision(req)
	g.request = g.encoder.AppendRequest(g.request[:0], req, abi.View{Role: g.p.report.Role, Settings: h.id, Needs: h.needs, Keys: h.keys})
	c.input = g.request
	_ = g.do(c)
	return g.decided(dec, len(req.Endpoints), resp)
}

// decision returns a call of sluice_decide, without its input.
func (g *guest) decision(req *abi.Request) call {
	n := len(req.Endpoints)
	budget := g.p.limits.DecideFuel + g.p.limits.EndpointFuel*int64(n)
	if g.maxFuel > 0 {
		budget = min(budget, g.maxFuel)
	}
	limit := g.p.limits.DecideTime
	switch {
	case g.selfTest:
		limit = g.p.limits.ConfigureTime
	case g.key.second: // within what is left of the bound of one call
		limit /= 2
	}
	// The room is not that of the buffer, which the largest request so far determines.
	return call{op: opDecide, room: abi.MaxResponse(n), fuel: budget, limit: limit}
}

// decided decodes the answer to the call for n endpoints that has been made.
func (g *guest) decided(dec *abi.Decoder, n int, resp *abi.Response) error {
	g.fuelUsed = g.call.used
	if g.call.err != nil {
		return g.call.err
	}
	switch got := g.call.value; {
	case got < 0:
		return fmt.Errorf("sluice_decide: %s", withLogged(abi.CodeText(got), g.call.loggedError))
	case got > int64(g.call.room):
		return fmt.Errorf("sluice_decide: returned a length of %d bytes for a buffer of %d", got, g.call.room)
	}
	if err := dec.DecodeResponse(g.call.out, n, resp); err != nil {
		return fmt.Errorf("sluice_decide: %w", err)
	}
	if role := g.p.report.Role; role != abi.RoleShare && len(resp.Groups) > 0 {
		return fmt.Errorf("sluice_decide: answer has groups, which are not for a plugin of role %s", role)
	}
	return nil
}

func (g *guest) close() {
	if g.in != nil {
		g.in.close()
		g.in = nil
	}
	g.p.host.memory.release(g.reserved)
	g.reserved = 0
}
