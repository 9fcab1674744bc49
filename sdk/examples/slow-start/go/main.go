// Package main is slow-start: an endpoint that this node has not seen before gets its share of new connections in steps. The
// state has when each of those was seen first: a version and a number, 4 bytes each, then a hash of the address and the time, 8
// bytes each.
package main

import (
	"encoding/binary"

	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(func() sdk.Plugin { return &plugin{steps: 4, step: 10 * sdk.Second} }) }

func main() {}

const (
	version   = 1
	header    = 8
	startSize = 16
	maxStarts = 63
)

type plugin struct {
	steps int64
	step  sdk.Duration
}

func (p *plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) {
		f.Int("steps", &p.steps, 2, 9)
		f.Duration("stepDuration", &p.step, sdk.Second, 10*sdk.Minute)
	})
}

// hashOf returns FNV-1a of the address and the port.
func hashOf(a sdk.Addr) uint64 {
	h, ip := uint64(0xcbf29ce484222325), a.As16()
	for _, c := range append(ip[:], byte(a.Port()), byte(a.Port()>>8)) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return h
}

// find returns the time of a hash in a state.
func find(state []byte, hash uint64) (since int64, ok bool) {
	for at := header; at < len(state); at += startSize {
		if binary.LittleEndian.Uint64(state[at:]) == hash {
			return int64(binary.LittleEndian.Uint64(state[at+8:])), true
		}
	}
	return 0, false
}

func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	le := binary.LittleEndian
	before := req.State()
	if len(before) < header || le.Uint32(before) != version || le.Uint32(before[4:]) > maxStarts || len(before) != header+int(le.Uint32(before[4:]))*startSize {
		before = nil // the first decision: all endpoints have been there
	}
	now, step, count := int64(req.Now()), p.step.Milliseconds(), 0
	after := make([]byte, header, sdk.MaxStateLen)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if !e.Eligible() || e.Capacity() == 0 {
			continue
		}
		hash := hashOf(e.Addr())
		since, known := find(before, hash)
		if !known || since > now {
			since = now
		}
		steps := (now-since)/step + 1
		if _, decided := e.PriorWeight(); !known && (before == nil || decided) || steps >= p.steps || count == maxStarts {
			continue // keeps its capacity
		}
		resp.SetCapacity(i, e.Capacity()*int(steps)/int(p.steps))
		resp.SetReason(i, "step "+string(rune('0'+steps))+" of "+string(rune('0'+p.steps)))
		resp.RequeueAfter(sdk.Duration(since+steps*step-now) * sdk.Millisecond)
		after = le.AppendUint64(le.AppendUint64(after, hash), uint64(since))
		count++
	}
	le.PutUint32(after, version)
	le.PutUint32(after[4:], uint32(count))
	resp.SetState(after)
	return nil
}
