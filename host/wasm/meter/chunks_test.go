package meter

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

const bulkOperations = `(module (memory (export "memory") 1)
	(func (export "fill") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 1) (local.get 2)))
	(func (export "copy") (param i32 i32 i32) (memory.copy (local.get 0) (local.get 1) (local.get 2)))
	(func (export "init") (param i32 i32 i32) (memory.init $d (local.get 0) (local.get 1) (local.get 2)))
	(func (export "drop") (data.drop $d))
	(data $d "%s"))`

// TestOperationsInChunksEqualWholeOnes compares random operations, many of which overlap or are out of bounds, with Go's.
func TestOperationsInChunksEqualWholeOnes(t *testing.T) {
	const chunk = 64
	r := rand.New(rand.NewPCG(1, 1))
	data, text := make([]byte, 5*chunk), strings.Builder{}
	for i := range data {
		data[i] = byte(r.Uint32())
		fmt.Fprintf(&text, "\\%02x", data[i])
	}
	out, _, err := rewrite(testenv.WAT(t, fmt.Sprintf(bulkOperations, text.String())), DefaultLimits(), chunk)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	rt := wazero.NewRuntime(ctx)
	defer rt.Close(ctx)
	m, err := rt.Instantiate(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	memory, ok := m.Memory().Read(0, m.Memory().Size())
	if !ok {
		t.Fatal("no memory")
	}
	for i := range memory {
		memory[i] = byte(r.Uint32())
	}
	want := bytes.Clone(memory)
	size := uint32(len(memory))
	at := func() uint32 { // often near a place or an end, so that operations overlap
		switch r.IntN(5) {
		case 0:
			return 1000 + r.Uint32N(3*chunk)
		case 1:
			return size - r.Uint32N(3*chunk)
		case 2:
			return r.Uint32()
		}
		return r.Uint32N(size)
	}
	trapped := 0
	for range 20_000 {
		to, from, n := at(), at(), r.Uint32N(6*chunk)
		if r.IntN(20) == 0 {
			n = r.Uint32() >> r.IntN(32)
		}
		name, op := "fill", func() {
			for i := range want[to : to+n] {
				want[to:][i] = byte(from)
			}
		}
		fits := uint64(to)+uint64(n) <= uint64(size)
		switch r.IntN(3) {
		case 0:
			from %= 8 * chunk
			name, op = "init", func() { copy(want[to:to+n], data[from:from+n]) }
			fits = fits && uint64(from)+uint64(n) <= uint64(len(data))
		case 1:
			name, op = "copy", func() { copy(want[to:to+n], want[from:from+n]) }
			fits = fits && uint64(from)+uint64(n) <= uint64(size)
		}
		m.ExportedGlobal(FuelExport).(api.MutableGlobal).Set(1 << 40)
		_, err := m.ExportedFunction(name).Call(ctx, uint64(to), uint64(from), uint64(n))
		what := fmt.Sprintf("%s %d %d %d", name, to, from, n)
		if (err == nil) != fits {
			t.Fatalf("%s: %v", what, err)
		}
		if fits {
			op()
		} else {
			trapped++
		}
		if !bytes.Equal(memory, want) {
			t.Fatalf("%s: another result", what)
		}
	}
	if trapped < 100 || trapped > 15_000 {
		t.Errorf("%d operations were out of bounds", trapped)
	}
	if _, err := m.ExportedFunction("drop").Call(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ExportedFunction("init").Call(ctx, 0, 0, 3*chunk); err == nil || !bytes.Equal(memory, want) {
		t.Fatalf("from a segment that was dropped: %v", err)
	}
}

// TestChunksAreChecked looks for a check in each loop over chunks.
func TestChunksAreChecked(t *testing.T) {
	const chunk = 64
	for _, kind := range []chunkedOp{chunkedFill, chunkedCopy, chunkedInit} {
		m := &module{chunkSize: chunk, dataSizes: []int{3 * chunk}, types: []FuncType{{[]byte{i32, i32, i32}, []byte{i32, i32, i32}}}}
		e := newEmitter(m)
		body := e.helperBody(nil, chunked{op: kind})
		if n := bytes.Count(body, e.check(nil)); n != map[chunkedOp]int{chunkedFill: 1, chunkedCopy: 2, chunkedInit: 1}[kind] {
			t.Errorf("%d: %d checks", kind, n)
		}
	}
}
