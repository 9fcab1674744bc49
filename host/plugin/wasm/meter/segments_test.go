package meter_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// segment is an active data segment.
type segment struct {
	offset  int32
	content string
}

// withData returns a module with a page of memory and data segments.
func withData(segments []segment) []byte {
	var data []byte
	for _, s := range segments {
		data = append(data, 0, 0x41)
		data = append(signed(data, s.offset), 0x0b)
		data = append(binary.AppendUvarint(data, uint64(len(s.content))), s.content...)
	}
	section := func(out []byte, id byte, content []byte) []byte {
		return append(binary.AppendUvarint(append(out, id), uint64(len(content))), content...)
	}
	out := section([]byte("\x00asm\x01\x00\x00\x00"), 5, []byte{1, 0, 1})
	out = section(out, 7, []byte{1, 6, 'm', 'e', 'm', 'o', 'r', 'y', 2, 0})
	return section(out, 11, append(binary.AppendUvarint(nil, uint64(len(segments))), data...))
}

// signed appends a number in signed LEB128.
func signed(b []byte, n int32) []byte {
	for {
		c := byte(n & 0x7f)
		n >>= 7
		if n == 0 && c&0x40 == 0 || n == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// memoryOf returns the memory of a new instance, or an error if there is none.
func memoryOf(ctx context.Context, rt wazero.Runtime, wasm []byte) ([]byte, error) {
	mod, err := rt.InstantiateWithConfig(ctx, wasm, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		return nil, err
	}
	defer mod.Close(ctx)
	all, _ := mod.Memory().Read(0, mod.Memory().Size())
	return bytes.Clone(all), nil
}

func TestMergedSegmentsFillTheMemoryAsBefore(t *testing.T) {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	r := rand.New(rand.NewPCG(1, 2))
	merged, images, failed := 0, 0, 0
	for range 300 {
		var list []segment
		at := 0
		for range r.IntN(40) {
			at += []int{0, 1, 7, 32, 33, 500, -3}[r.IntN(7)]
			if r.IntN(150) == 0 {
				at = 1<<16 - 2 // the next one may exceed the memory
			}
			content := make([]byte, r.IntN(20))
			for i := range content {
				content[i] = byte(r.IntN(256))
			}
			list = append(list, segment{int32(max(0, at)), string(content)})
			at = max(0, at) + len(content)
		}
		if r.IntN(4) == 0 {
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		wasm := withData(list)
		metered, info := rewrite(t, wasm)
		want, wantErr := memoryOf(ctx, rt, wasm)
		got, err := memoryOf(ctx, rt, metered)
		if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
			t.Fatalf("%v: another memory: %v, %v", list, err, wantErr)
		}
		if info.Data < len(list) {
			merged++
		}
		o, outlineErr := meter.NewOutline(metered)
		if outlineErr != nil {
			t.Fatal(outlineErr)
		}
		switch got, err := memoryOf(ctx, rt, o.Module); {
		case err != nil || o.Memory == nil:
			if (err == nil) != (wantErr == nil) || !bytes.Equal(got, want) {
				t.Fatalf("%v: another memory of the outline: %v, %v", list, err, wantErr)
			}
		case len(bytes.Trim(got, "\x00")) > 0 || !bytes.Equal(append(bytes.Clone(o.Memory), want[len(o.Memory):]...), want) || len(bytes.Trim(want[len(o.Memory):], "\x00")) > 0:
			t.Fatalf("%v: an image of %d bytes, want %q", list, len(o.Memory), bytes.TrimRight(want, "\x00"))
		default:
			images++
		}
		if err != nil {
			failed++
		}
	}
	if merged < 20 || images < 100 || failed == 0 {
		t.Errorf("segments of %d modules were merged, %d have an image, %d failed to start", merged, images, failed)
	}
}

func TestOnlySegmentsThatAreCloseAndApartAreMerged(t *testing.T) {
	for _, c := range []struct {
		segments    []segment
		data, bytes int
	}{
		{[]segment{{0, "a"}}, 1, 1},
		{[]segment{{0, "a"}, {33, "b"}, {67, "c"}}, 2, 35},
		{[]segment{{40, "c"}, {0, "ab"}, {2, "d"}}, 2, 4},
		{[]segment{{0, "ab"}, {1, "c"}}, 2, 3}, // the order matters
		{[]segment{{-1, "a"}, {-2, "b"}}, 1, 2},
	} {
		_, info, err := meter.Rewrite(withData(c.segments), meter.DefaultLimits())
		if err != nil || info.Data != c.data || info.DataBytes != c.bytes {
			t.Errorf("%v: %d segments, %d bytes, %v, want %d and %d", c.segments, info.Data, info.DataBytes, err, c.data, c.bytes)
		}
	}
}
