package wasm

import (
	"fmt"
	"reflect"

	"github.com/tetratelabs/wazero/api"
)

const (
	trimEvery = 64        // calls
	keptStack = 256 << 10 // bytes of call stack that an instance keeps between calls
)

// footprint is the host memory of an instance in bytes. wazero does not report it, so it is read from wazero's own records.
type footprint struct{ memory, tables, references, stacks uint64 }

func (f footprint) total() uint64 { return f.memory + f.tables + f.references + f.stacks }

// measure returns the footprint of an instance, called through funcs, or an error if wazero's records are not as expected.
func measure(module api.Module, funcs ...api.Function) (f footprint, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("memory of an instance: another layout than expected of wazero: %v", r)
		}
	}()
	const word = 8
	f.memory = uint64(module.Memory().Size())
	instance := reflect.ValueOf(module).Elem()
	tables := instance.FieldByName("Tables")
	for i := range tables.Len() {
		f.tables += word * uint64(tables.Index(i).Elem().FieldByName("References").Cap())
	}
	segments := instance.FieldByName("ElementInstances")
	for i := range segments.Len() {
		f.references += word * uint64(segments.Index(i).Cap())
	}
	references := instance.FieldByName("Engine").Elem().Elem().FieldByName("localFunctionInstances")
	record := uint64(references.Type().Elem().Elem().Size())
	f.references += word*uint64(references.Cap()) + record*uint64(references.Len())
	for _, fn := range funcs {
		if fn != nil {
			f.stacks += uint64(reflect.ValueOf(fn).Elem().FieldByName("stack").Len())
		}
	}
	return f, nil
}

// footprint implements instance: at least its linear memory.
func (s *sandbox) footprint() footprint {
	f, err := measure(s.module, s.decide, s.alloc)
	if err != nil {
		s.l.log.Warn("memory of a plugin not measured", "err", err) // a test fails for such a version of wazero
	}
	return f
}

// trim implements instance.
func (s *sandbox) trim() {
	if s.footprint().stacks > keptStack {
		s.bind()
	}
}

// bind looks up the functions that are called often. Each has a call stack of its own.
func (s *sandbox) bind() {
	s.decide, s.alloc = s.module.ExportedFunction("sluice_decide"), s.module.ExportedFunction("sluice_alloc")
}

// trim is called after each decision of g. Every trimEvery of them it frees call stacks that a deep recursion has left, and
// closes an instance that has more host memory than it may have.
func (p *Plugin) trim(g *guest) {
	if g.calls++; g.calls%trimEvery != 0 {
		return
	}
	p.dropTrials()
	if g.in == nil { // it may have been evicted
		return
	}
	g.in.trim()
	f := g.in.footprint()
	if n := f.total() - f.memory; n > uint64(p.limits.OverheadBytes) {
		p.log.Warn("plugin instance replaced: too much memory for tables, references and call stacks", "bytes", n, "limit", p.limits.OverheadBytes)
		p.drop(g)
	}
}

// trialIdle is after how long without a trial the instances for it are closed, in milliseconds.
const trialIdle = 60_000

func (p *Plugin) dropTrials() {
	if p.triedAt == 0 || p.now < p.triedAt+trialIdle {
		return
	}
	p.triedAt = 0
	for key, g := range p.pool.guests {
		if key.trial {
			p.drop(g)
		}
	}
}
