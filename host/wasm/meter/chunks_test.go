package meter

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

const bulkOperations = `(module (memory (export "memory") 1)
	(func (export "fill") (param i32 i32 i32) (memory.fill (local.get 0) (local.get 1) (local.get 2)))
	(func (export "copy") (param i32 i32 i32) (memory.copy (local.get 0) (local.get 1) (local.get 2))))`

// TestOperationsInChunksEqualWholeOnes compares random operations, many of which overlap or are out of bounds, with Go's.
func TestOperationsInChunksEqualWholeOnes(t *testing.T) {
	const chunk = 64
	out, _, err := rewrite(testenv.WAT(t, bulkOperations), DefaultLimits(), chunk)
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
	r := rand.New(rand.NewPCG(1, 1))
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
		if r.IntN(2) == 0 {
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
}

// TestChunksAreChecked looks for a check in each loop over chunks.
func TestChunksAreChecked(t *testing.T) {
	const chunk = 64
	for _, kind := range []chunked{chunkedFill, chunkedCopy} {
		m := &module{types: []FuncType{{[]byte{i32, i32, i32}, []byte{i32, i32, i32}}}}
		e := newEmitter(m)
		e.chunkSize = chunk
		body := e.helperBody(nil, kind)
		if n := bytes.Count(body, e.check(nil)); n != map[chunked]int{chunkedFill: 1, chunkedCopy: 2}[kind] {
			t.Errorf("%d: %d checks", kind, n)
		}
	}
}
