package wasm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

// bomb returns a module of n functions with bodies of about size bytes that are expensive to compile in one way.
func bomb(kind string, locals, size, n int) []byte {
	uleb := func(b []byte, v int) []byte { return binary.AppendUvarint(b, uint64(v)) }
	section := func(out []byte, id byte, c []byte) []byte { return append(uleb(append(out, id), len(c)), c...) }
	body := append(uleb([]byte{1}, locals), 0x7e)
	get := func(i int) { body = uleb(append(body, 0x20), i%locals) }
	set := func(i int) { body = uleb(append(body, 0x21), i%locals) }
	for i := 0; len(body) < size; i++ {
		switch kind {
		case "ifs": // each joins the value that it set with the previous one
			get(i)
			body = append(body, 0xa7, 0x04, 0x40)
			get(i + 3)
			set(i + 7)
			body = append(body, 0x0b)
		case "loops":
			body = append(body, 0x03, 0x40, 0x41, 1, 0x0d, 0, 0x0b)
			get(i)
			set(i + 1)
		case "nested loops":
			for range 60 {
				body = append(body, 0x03, 0x40)
			}
			for j := range locals {
				get(j)
				set(j + 1)
			}
			for j := range 60 {
				get(j)
				body = append(body, 0xa7, 0x0d, 0, 0x0b)
			}
		case "calls":
			body = append(body, 0x10, 0)
		case "loads":
			body = append(body, 0x41, 0, 0x29, 3, 0, 0x1a)
		}
	}
	body = append(body, 0x0b)
	out := section([]byte("\x00asm\x01\x00\x00\x00"), 1, []byte{1, 0x60, 0, 0})
	out = section(out, 3, append(uleb(nil, n), make([]byte, n)...))
	out = section(out, 5, []byte{1, 0, 1})
	code := append(uleb(nil, len(body)), body...)
	return section(out, 10, append(uleb(nil, n), bytes.Repeat(code, n)...))
}

func bombs() []struct {
	kind         string
	locals, size int
} {
	return []struct {
		kind         string
		locals, size int
	}{
		{"ifs", 2, 25_000}, {"ifs", 20, 20_000}, {"ifs", 100, 12_000}, {"loops", 2, 8_000}, {"loops", 100, 7_000},
		{"nested loops", 200, 9_000}, {"calls", 1, 48_000}, {"loads", 1, 65_000},
	}
}

// A single one compiles; a number that would take minutes is refused.
func TestCompileWorkLimitsTheMostExpensiveFunctions(t *testing.T) {
	limits := meter.DefaultLimits()
	for _, c := range bombs() {
		out, info, err := meter.Rewrite(bomb(c.kind, c.locals, c.size, 1), limits)
		if err != nil {
			t.Errorf("%s, %d locals, %d bytes: %v: the test should know the limit better", c.kind, c.locals, c.size, err)
			continue
		}
		ctx := context.Background()
		rt := wazero.NewRuntime(ctx)
		if _, err := rt.CompileModule(ctx, out); err != nil {
			t.Errorf("%s: %v", c.kind, err)
		}
		rt.Close(ctx)
		many := limits.Work/info.Work + 1
		_, _, err = meter.Rewrite(bomb(c.kind, c.locals, c.size, many), limits)
		var refused *meter.Error
		if !errors.As(err, &refused) {
			t.Errorf("%s: %d functions are accepted", c.kind, many)
		}
	}
}

// BenchmarkMostExpensiveCompile compiles the most expensive accepted module of each kind.
func BenchmarkMostExpensiveCompile(b *testing.B) {
	limits := meter.DefaultLimits()
	for _, c := range bombs() {
		b.Run(fmt.Sprintf("%s/%d", c.kind, c.locals), func(b *testing.B) {
			_, info, err := meter.Rewrite(bomb(c.kind, c.locals, c.size, 1), limits)
			if err != nil {
				b.Fatal(err)
			}
			n := min(limits.Work/info.Work, limits.Module/(c.size+100))
			out, info, err := meter.Rewrite(bomb(c.kind, c.locals, c.size, n), limits)
			if err != nil {
				b.Fatal(err)
			}
			cpu := cpuTime(b)
			for b.Loop() {
				ctx := context.Background()
				rt := wazero.NewRuntime(ctx)
				if _, err := rt.CompileModule(ctx, out); err != nil {
					b.Fatal(err)
				}
				rt.Close(ctx)
			}
			cpu()
			b.ReportMetric(float64(info.Size), "bytes")
			b.ReportMetric(float64(info.Work), "work")
		})
	}
}
