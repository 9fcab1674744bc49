package wasm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// bomb writes function bodies that are expensive to compile in one way.
type bomb struct {
	name    string
	locals  int
	globals int
	types   int // more than those that it uses
	body    func(b *bombBody, size int)
	after   int // tiny functions after each
}

type bombBody struct {
	code   []byte
	locals int
}

func (b *bombBody) op(code ...byte)     { b.code = append(b.code, code...) }
func (b *bombBody) uleb(op byte, v int) { b.code = binary.AppendUvarint(append(b.code, op), uint64(v)) }
func (b *bombBody) get(i int)           { b.uleb(0x20, i%b.locals) }
func (b *bombBody) set(i int)           { b.uleb(0x21, i%b.locals) }
func (b *bombBody) emptyBlocks(n int)   { b.repeat(n, 0x02, 0x40, 0x0b) }

// sums leaves n sums on the stack.
func (b *bombBody) sums(n int) int {
	for i := range n {
		b.get(i)
		b.get(i + 1)
		b.op(0x7c)
	}
	return n
}

func (b *bombBody) repeat(n int, c ...byte) {
	for range n {
		b.op(c...)
	}
}

// Types of the modules: 0 is () -> (), 1 is (i32 × 16) -> (i32 × 16), and those of the exports of the ABI.
const bombTypes = 5

// bombs returns one module for each way that is known to make a compiler slow.
func bombs() []bomb {
	return []bomb{
		{name: "plain", locals: 8, body: func(b *bombBody, size int) {
			for i := 0; len(b.code) < size; i++ {
				b.get(i)
				b.get(i + 1)
				b.op(0x7c)
				b.set(i + 2)
			}
		}},
		{name: "ifs/2", locals: 2, body: ifs},
		{name: "ifs/20", locals: 20, body: ifs},
		{name: "ifs/300", locals: 300, body: ifs},
		{name: "ifs/1900", locals: 1900, body: ifs},
		{name: "loops/2", locals: 2, body: loops},
		{name: "loops/100", locals: 100, body: loops},
		{name: "nested loops/30", locals: 30, body: nestedLoops(60)},
		{name: "nested loops/200", locals: 200, body: nestedLoops(60)},
		{name: "nested loops/1700", locals: 1700, body: nestedLoops(64)},
		{name: "some nested loops/300", locals: 300, body: nestedLoops(4)},
		{name: "calls", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/2, 0x10, 0) }},
		{name: "calls with globals", locals: 1, globals: 1000, body: func(b *bombBody, size int) { b.repeat(size/2, 0x10, 0) }},
		{name: "calls with values", locals: 16, body: func(b *bombBody, size int) {
			for i := range 16 {
				b.get(i)
				b.op(0xa7)
			}
			b.repeat(size/2, 0x10, 1)
			b.repeat(16, 0x1a)
		}},
		{name: "loads", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/6, 0x41, 0, 0x29, 3, 0, 0x1a) }},
		{name: "loads by address and blocks", locals: 1, body: func(b *bombBody, size int) {
			b.op(0x41, 0)
			b.repeat(size/6, 0x28, 2, 0, 0x02, 0x40, 0x0b)
			b.op(0x1a)
		}},
		{name: "chain of blocks", locals: 1, body: func(b *bombBody, size int) { b.emptyBlocks(size / 3) }},
		{name: "chain of blocks, gets at its end", locals: 1, body: func(b *bombBody, size int) {
			b.emptyBlocks(size / 6)
			b.repeat(size/6, 0x20, 0, 0x1a)
		}},
		{name: "chain of blocks, joins at its end", locals: 200, body: func(b *bombBody, size int) {
			b.emptyBlocks(size / 4)
			for i := 0; len(b.code) < size; i++ {
				b.op(0x02, 0x40)
				b.get(i)
				b.op(0xa7, 0x0d, 0)
				b.get(i)
				b.set(i + 1)
				b.op(0x0b)
				b.emptyBlocks(10)
			}
		}},
		{name: "chain of loops", locals: 20, body: func(b *bombBody, size int) {
			for i := range min(size/8, 990) {
				b.op(0x03, 0x40)
				b.get(i)
				b.op(0x1a, 0x0b)
			}
		}},
		{name: "stack of values across blocks", locals: 2, body: func(b *bombBody, size int) {
			n := b.sums(size / 10)
			b.emptyBlocks(n)
			b.repeat(n, 0x1a)
		}},
		{name: "spills across blocks", locals: 2, body: func(b *bombBody, size int) {
			n := b.sums(size / 10)
			b.emptyBlocks(n)
			b.repeat(n-1, 0x7c)
			b.set(0)
		}},
		{name: "selects of vectors/2", locals: 2, body: selectsOfVectors},
		{name: "selects of vectors/300", locals: 300, body: selectsOfVectors},
		{name: "remainders", locals: 4, body: remainders},
		{name: "remainders and ifs", locals: 4, body: func(b *bombBody, size int) { // the meter's locals are passed to all joins
			remainders(b, 20)
			ifs(b, size)
		}},
		{name: "br_table", locals: 20, body: brTable},
		{name: "br_table/1000", locals: 1000, body: brTable},
		{name: "branches out", locals: 2, body: func(b *bombBody, size int) {
			b.op(0x02, 0x40)
			for i := 0; len(b.code) < size; i++ {
				b.get(i)
				b.op(0xa7, 0x0d, 0)
			}
			b.op(0x0b)
		}},
		{name: "branches out of a nest", locals: 2, body: func(b *bombBody, size int) {
			n := min(size/8, 2900)
			b.repeat(n, 0x02, 0x40)
			for i := range n {
				b.get(i)
				b.uleb(0xa7, 0x0d)
				b.code = binary.AppendUvarint(b.code, uint64(n-1-i))
			}
			b.repeat(n, 0x0b)
		}},
		{name: "blocks with values", locals: 16, body: func(b *bombBody, size int) {
			for i := range 16 {
				b.get(i)
				b.op(0xa7)
			}
			for i := 0; len(b.code) < size; i++ {
				b.op(0x02, 1)
				b.get(i)
				b.op(0xa7, 0x0d, 0, 0x0b)
			}
			b.repeat(16, 0x1a)
		}},
		{name: "memory.fill", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/9, 0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 11, 0) }},
		{name: "memory.copy", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/10, 0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 10, 0, 0) }},
		{name: "memory.grow", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/5, 0x41, 0, 0x40, 0, 0x1a) }},
		{name: "call_indirect", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/5, 0x41, 0, 0x11, 0, 0) }},
		{name: "table.get", locals: 1, body: func(b *bombBody, size int) { b.repeat(size/5, 0x41, 0, 0x25, 0, 0x1a) }},
		{name: "table.fill", locals: 1, body: func(b *bombBody, size int) {
			b.repeat(size/9, 0x41, 0, 0xd0, 0x70, 0x41, 0, 0xfc, 17, 0)
		}},
		{name: "truncation", locals: 1, body: func(b *bombBody, size int) {
			b.get(0)
			b.op(0xbf)
			b.repeat(size/2, 0xb0, 0xb9) // i64.trunc_f64_s, f64.convert_i64_s
			b.op(0x1a)
		}},
		{name: "division", locals: 1, body: func(b *bombBody, size int) {
			b.get(0)
			for len(b.code) < size {
				b.get(0)
				b.op(0x7f)
			}
			b.op(0x1a)
		}},
		{name: "vectors", locals: 1, body: func(b *bombBody, size int) {
			b.get(0)
			b.op(0xfd, 0x12)
			for len(b.code) < size {
				b.get(0)
				b.op(0xfd, 0x12, 0xfd, 0xd5, 1) // i64x2.splat, i64x2.mul
			}
			b.op(0x1a)
		}},
		{name: "shuffles", locals: 1, body: func(b *bombBody, size int) {
			b.get(0)
			b.op(0xfd, 0x12)
			for len(b.code) < size {
				b.get(0)
				b.op(0xfd, 0x12, 0xfd, 0x0d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
			}
			b.op(0x1a)
		}},
		{name: "globals", locals: 1, globals: 1000, body: func(b *bombBody, size int) {
			for i := 0; len(b.code) < size; i++ {
				b.uleb(0x23, i%1000)
				b.uleb(0x24, (i+1)%1000)
			}
		}},
		{name: "tiny functions", locals: 1, body: func(*bombBody, int) {}},
		{name: "tiny functions and types", locals: 1, types: 4000, body: func(*bombBody, int) {}},
		{name: "tiny functions after a large one", locals: 1, after: 20000, body: func(b *bombBody, size int) { b.emptyBlocks(size / 12) }},
	}
}

func ifs(b *bombBody, size int) { // each joins the value that it sets with the previous one
	for i := 0; len(b.code) < size; i++ {
		b.get(i)
		b.op(0xa7, 0x04, 0x40)
		b.get(i + 3)
		b.set(i + 7)
		b.op(0x0b)
	}
}

func selectsOfVectors(b *bombBody, size int) {
	for i := 0; len(b.code) < size; i++ {
		b.get(i)
		b.op(0xfd, 0x12) // i64x2.splat
		b.get(i + 1)
		b.op(0xfd, 0x12, 0x41, 1, 0x1b, 0xfd, 0x1d, 0) // select, i64x2.extract_lane
		b.set(i + 1)
	}
}

func remainders(b *bombBody, size int) {
	for i := 0; len(b.code) < size; i++ {
		b.get(i)
		b.get(i + 1)
		b.op(0x81)
		b.set(i + 2)
	}
}

func loops(b *bombBody, size int) {
	for i := 0; i < 990 && len(b.code) < size; i++ {
		b.op(0x03, 0x40, 0x41, 1, 0x0d, 0, 0x0b)
		b.get(i)
		b.set(i + 1)
	}
}

// nestedLoops are redundant parameters that are found one level at a time, from the inside.
func nestedLoops(depth int) func(b *bombBody, size int) {
	return func(b *bombBody, size int) {
		for n := 0; n == 0 || len(b.code) < size && n+depth < 990; n += depth {
			b.repeat(depth, 0x03, 0x40)
			for j := range b.locals {
				b.get(j)
				b.op(0x1a)
			}
			for j := range depth {
				b.get(j)
				b.op(0xa7, 0x0d, 0, 0x0b)
			}
		}
	}
}

func brTable(b *bombBody, size int) {
	for i := 0; len(b.code) < size; i++ {
		b.op(0x02, 0x40, 0x02, 0x40)
		b.get(i)
		b.set(i + 1)
		b.get(i)
		b.op(0xa7)
		n := max(min(200, size-len(b.code)), 1)
		b.uleb(0x0e, n)
		for j := range n {
			b.op(byte(j % 2))
		}
		b.op(0, 0x0b, 0x0b)
	}
}

// module returns a module of n functions with bodies of about size bytes.
func (b bomb) module(size, n int) []byte {
	uleb := func(out []byte, v int) []byte { return binary.AppendUvarint(out, uint64(v)) }
	section := func(out []byte, id byte, c []byte) []byte { return append(uleb(append(out, id), len(c)), c...) }
	body := &bombBody{locals: b.locals}
	b.body(body, size)
	code := append(append(uleb([]byte{1}, b.locals), 0x7e), body.code...)
	code = append(code, 0x0b)

	sixteen := make([]byte, 16)
	for i := range sixteen {
		sixteen[i] = 0x7f
	}
	types := uleb(nil, bombTypes+b.types)
	types = append(types, 0x60, 0, 0)
	types = append(append(append(append(types, 0x60, 16), sixteen...), 16), sixteen...)
	types = append(types, 0x60, 0, 1, 0x7f, 0x60, 1, 0x7f, 1, 0x7f, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7e)
	for i := range b.types { // all different
		types = append(types, 0x60, 12)
		for bit := range 12 {
			types = append(types, 0x7e+byte(i>>bit&1))
		}
		types = append(types, 0)
	}
	// Functions 0 and 1 are called by the others, 2 to 4 are exported.
	rest := n * (1 + b.after)
	funcs := append(uleb(nil, rest+5), 0, 1, 2, 3, 4)
	bodies := append(uleb(nil, rest+5), 2, 0, 0x0b)
	identity := []byte{0}
	for i := range 16 {
		identity = append(identity, 0x20, byte(i))
	}
	identity = append(identity, 0x0b)
	bodies = append(uleb(bodies, len(identity)), identity...)
	bodies = append(bodies, 4, 0, 0x41, 0, 0x0b, 4, 0, 0x41, 8, 0x0b, 4, 0, 0x42, 0, 0x0b)
	for range n {
		funcs = append(funcs, 0)
		bodies = append(uleb(bodies, len(code)), code...)
		for range b.after {
			funcs = append(funcs, 0)
			bodies = append(bodies, 2, 0, 0x0b)
		}
	}
	out := section([]byte("\x00asm\x01\x00\x00\x00"), 1, types)
	out = section(out, 3, funcs)
	out = section(out, 4, []byte{1, 0x70, 0, 10})
	out = section(out, 5, []byte{1, 0, 1})
	globals := uleb(nil, b.globals)
	for range b.globals {
		globals = append(globals, 0x7e, 1, 0x42, 0, 0x0b)
	}
	out = section(out, 6, globals)
	out = section(out, 9, []byte{1, 3, 0, 1, 0}) // declares function 0 for ref.func
	return section(out, 10, bodies)
}

// bombExports are the exports that a plugin needs, for the functions of a bomb.
func bombExports() []struct {
	name  string
	kind  byte
	index int
} {
	return []struct {
		name  string
		kind  byte
		index int
	}{
		{"memory", meter.KindMemory, 0}, {"_initialize", meter.KindFunc, 0}, {"sluice_abi_version", meter.KindFunc, 2},
		{"sluice_alloc", meter.KindFunc, 3}, {"sluice_decide", meter.KindFunc, 4},
	}
}

// largest returns the bytes of the largest body that is accepted, and its module.
func (b bomb) largest(t testing.TB, limits meter.Limits) (size int, info *meter.Info) {
	t.Helper()
	for size = limits.Body - 2000; size > 8; size = size * 9 / 10 {
		_, info, err := meter.Rewrite(b.module(size, 1), limits)
		if err == nil {
			return size, info
		}
	}
	return 0, nil
}

// TestCompileWorkLimitsTheMostExpensiveFunctions: a number of functions that would take minutes is refused.
func TestCompileWorkLimitsTheMostExpensiveFunctions(t *testing.T) {
	limits := meter.DefaultLimits()
	for _, c := range bombs() {
		size, info := c.largest(t, limits)
		if size == 0 {
			continue // even the smallest is refused
		}
		_, two, err := meter.Rewrite(c.module(size, 2), limits)
		if err != nil {
			continue // a second one is too much
		}
		each := two.Work - info.Work
		if many := limits.Work/each + 1; many*(size+100) < limits.Module && many*(1+c.after)+3 < limits.Functions {
			_, _, err := meter.Rewrite(c.module(size, many), limits)
			var refused *meter.Error
			if !errors.As(err, &refused) {
				t.Errorf("%s: %d functions are accepted", c.name, many)
			}
		}
	}
}

// BenchmarkMostExpensiveCompile compiles a part of the most expensive accepted module of each kind, and reports the CPU time
// of a unit of work and, from that, of the whole module.
func BenchmarkMostExpensiveCompile(b *testing.B) {
	limits := meter.DefaultLimits()
	const part = 100
	for _, c := range bombs() {
		b.Run(c.name, func(b *testing.B) {
			size, info := c.largest(b, limits)
			if size == 0 {
				b.Skip("refused at any size")
			}
			per := 1 + c.after
			n := min(limits.Work/info.Work, limits.Module/(size+100), limits.Functions/per)
			n = max(1, n/part)
			out, info, err := meter.Rewrite(c.module(size, n), limits)
			if err != nil {
				b.Fatal(err)
			}
			cpu := threadTimes()
			for b.Loop() {
				ctx := context.Background()
				rt := wazero.NewRuntime(ctx)
				if _, err := rt.CompileModule(ctx, out); err != nil {
					b.Fatal(err)
				}
				rt.Close(ctx)
			}
			spent := (threadTimes() - cpu) / time.Duration(b.N)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(size), "bytes")
			b.ReportMetric(float64(info.Work), "work")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(info.Work), "ns/work")
			all := float64(min(limits.Work, info.Work*part))
			b.ReportMetric(spent.Seconds()/float64(info.Work)*all, "s/module")
		})
	}
}

// threadTimes returns the CPU time of this process.
func threadTimes() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprint("getrusage: ", err))
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
