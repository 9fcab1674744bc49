package meter_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/need"
	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

func wat(t testing.TB, text string) []byte {
	t.Helper()
	need.Program(t, "wat2wasm", "wabt")
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.wat"), filepath.Join(dir, "out.wasm")
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if msg, err := exec.Command("wat2wasm", "--debug-names", in, "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v\n%s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rewrite(t testing.TB, wasm []byte) ([]byte, *meter.Info) {
	t.Helper()
	out, info, err := meter.Rewrite(wasm, meter.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return out, info
}

// run is an instance with its fuel.
type run struct {
	t     testing.TB
	mod   api.Module
	fuel  api.MutableGlobal
	stack api.MutableGlobal
}

func instantiate(t testing.TB, wasm []byte, metered bool) *run {
	t.Helper()
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(64))
	t.Cleanup(func() { rt.Close(ctx) })
	mod, err := rt.InstantiateWithConfig(ctx, wasm, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, mod: mod}
	if metered {
		r.fuel = mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
		r.stack = mod.ExportedGlobal(meter.StackExport).(api.MutableGlobal)
	}
	return r
}

// call gives the results of function name and the fuel that it used.
func (r *run) call(budget int64, name string, args ...uint64) ([]uint64, int64, error) {
	if r.fuel == nil {
		res, err := r.mod.ExportedFunction(name).Call(context.Background(), args...)
		return res, 0, err
	}
	r.fuel.Set(uint64(budget))
	res, err := r.mod.ExportedFunction(name).Call(context.Background(), args...)
	return res, budget - int64(r.fuel.Get()), err
}

func trapText(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// everything uses each kind of control flow, several results, references, bulk operations and vectors.
const everything = `(module
  (type $binary (func (param i32 i32) (result i32)))
  (type $pair (func (param i32) (result i32 i64)))
  (memory (export "memory") 2)
  (data (i32.const 100) "hello, world")
  (data $passive "passive data")
  (table $t 8 16 funcref)
  (table $x 4 externref)
  (elem (i32.const 0) $add $sub)
  (elem $e func $mul $add)
  (global $g (mut i32) (i32.const 5))
  (global $c i64 (i64.const 7))
  (func $add (type $binary) (i32.add (local.get 0) (local.get 1)))
  (func $sub (type $binary) (i32.sub (local.get 0) (local.get 1)))
  (func $mul (type $binary) (i32.mul (local.get 0) (local.get 1)))
  (func $fib (export "fib") (param i32) (result i32)
    (if (result i32) (i32.lt_u (local.get 0) (i32.const 2))
      (then (local.get 0))
      (else (i32.add (call $fib (i32.sub (local.get 0) (i32.const 1))) (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
  (func $pair (export "pair") (type $pair)
    (if (i32.eqz (local.get 0)) (then (return (i32.const -1) (i64.const -2))))
    (call $fib (local.get 0)) (i64.extend_i32_s (local.get 0)))
  (func (export "multi") (param i32) (result i64)
    (call $pair (local.get 0))
    (block (param i32 i64) (result i64)
      (loop (param i32 i64) (result i32 i64)
        (br_if 1 (i64.const 9) (i32.eqz (local.tee 0 (i32.shr_u (local.get 0) (i32.const 1)))))
        (drop) (br 0))
      (i64.add (i64.extend_i32_s (local.get 0))) (return)))
  (func (export "switch") (param i32) (result i32)
    (local $sum i32)
    (block $out
      (loop $again
        (block $d (block $c (block $b (block $a
          (br_table $a $b $c $d (local.get 0)))
          (local.set $sum (i32.add (local.get $sum) (i32.const 1))) (br $out))
          (local.set $sum (i32.add (local.get $sum) (i32.const 10))) (local.set 0 (i32.const 0)) (br $again))
          (local.set $sum (i32.add (local.get $sum) (i32.const 100))) (local.set 0 (i32.const 1)) (br $again))
        (local.set $sum (i32.add (local.get $sum) (i32.const 1000)))
        (local.set 0 (i32.and (i32.sub (local.get 0) (i32.const 1)) (i32.const 15))) (br $again)))
    (local.get $sum))
  (func (export "indirect") (param i32) (result i32)
    (table.init $t $e (i32.const 4) (i32.const 0) (i32.const 2))
    (table.copy $t $t (i32.const 6) (i32.const 4) (i32.const 2))
    (drop (table.grow $t (ref.func $add) (i32.const 3)))
    (drop (table.grow $t (ref.func $add) (i32.const 1000)))
    (table.fill $t (i32.const 2) (ref.func $mul) (i32.const 2))
    (table.set $x (i32.const 1) (ref.null extern))
    (i32.add (i32.mul (table.size $t) (i32.const 100))
      (call_indirect (type $binary) (i32.const 20) (i32.const 3) (i32.rem_u (local.get 0) (i32.const 11)))))
  (func (export "bulk") (param i32) (result i64)
    (memory.fill (i32.const 1000) (local.get 0) (i32.const 333))
    (memory.copy (i32.const 1100) (i32.const 100) (i32.const 12))
    (memory.init $passive (i32.const 1200) (i32.const 0) (i32.const 7))
    (data.drop $passive)
    (drop (memory.grow (i32.const 1)))
    (drop (memory.grow (i32.const 100)))
    (i64.add (i64.mul (i64.extend_i32_u (memory.size)) (i64.const 1000))
      (i64.xor (i64.load (i32.const 1100)) (i64.load (i32.const 1201)))))
  (func (export "vector") (param i32) (result i64)
    (local $v v128)
    (local.set $v (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23
      (i32x4.splat (local.get 0)) (v128.const i32x4 1 2 3 4)))
    (v128.store offset=64 (i32.const 0) (i16x8.abs (i64x2.mul (local.get $v) (local.get $v))))
    (local.set $v (v128.load32_lane offset=64 2 (i32.const 4) (local.get $v)))
    (i64.add (i64x2.extract_lane 0 (local.get $v)) (i64.trunc_sat_f64_s (f64x2.extract_lane 1 (f64x2.convert_low_i32x4_u (local.get $v))))))
  (func (export "float") (param i32) (result i64)
    (i64.reinterpret_f64 (f64.sqrt (f64.div (f64.convert_i32_u (local.get 0)) (f64.const 3)))))
  (func (export "unreached") (param i32) (result i32)
    (block $b (result i32)
      (br $b (i32.const 3))
      (loop (br 0)) (if (then (unreachable)) (else (return (i32.const 1)))) (block (unreachable) (br_if 0)) (unreachable)))
  (func (export "select") (param i32) (result i32)
    (global.set $g (i32.add (global.get $g) (i32.extend8_s (local.get 0))))
    (drop (ref.is_null (select (result funcref) (ref.null func) (ref.func $add) (local.get 0))))
    (select (global.get $g) (i32.wrap_i64 (global.get $c)) (i32.and (local.get 0) (i32.const 1))))
  (func (export "divide") (param i32) (result i32) (i32.div_u (i32.const 100) (local.get 0)))
  (func $started (global.set $g (i32.const 77)))
  (func (export "global") (param i32) (result i32) (global.get $g))
)`

func TestMeteredModuleDoesTheSame(t *testing.T) {
	raw := wat(t, everything)
	out, info := rewrite(t, raw)
	if info.Functions != 16 || info.Start {
		t.Errorf("info: %+v", info)
	}
	for _, name := range []string{"fib", "pair", "multi", "switch", "indirect", "vector", "float", "unreached", "select", "divide", "global", "bulk"} {
		for arg := range uint64(18) {
			a, b := instantiate(t, raw, false), instantiate(t, out, true)
			want, _, errA := a.call(0, name, arg)
			got, used, errB := b.call(1<<40, name, arg)
			if trapText(errA) != trapText(errB) || fmt.Sprint(want) != fmt.Sprint(got) {
				t.Errorf("%s(%d): %v %q, metered %v %q", name, arg, want, trapText(errA), got, trapText(errB))
			}
			if used <= 0 {
				t.Errorf("%s(%d) used %d", name, arg, used)
			}
			if errB == nil && b.stack.Get() != uint64(meter.DefaultLimits().StackSlots) {
				t.Errorf("%s(%d) left the stack at %d", name, arg, b.stack.Get())
			}
			am, _ := a.mod.Memory().Read(0, 2<<16)
			bm, _ := b.mod.Memory().Read(0, 2<<16)
			if !bytes.Equal(am, bm) || a.mod.Memory().Size() != b.mod.Memory().Size() {
				t.Errorf("%s(%d): memories differ", name, arg)
			}
		}
	}
}

func TestFuelIsTheSameEachTimeAndRisesWithWork(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	again, _ := rewrite(t, wat(t, everything))
	if !bytes.Equal(out, again) {
		t.Fatal("two rewritings differ")
	}
	r := instantiate(t, out, true)
	last := int64(0)
	for n := uint64(2); n < 20; n++ {
		_, a, err := r.call(1<<40, "fib", n)
		_, b, _ := r.call(1<<40, "fib", n)
		if err != nil || a != b || a <= last {
			t.Fatalf("fib(%d): %d, %d, before %d: %v", n, a, b, last, err)
		}
		last = a
	}
}

func TestFuelRunsOutExactlyWhereItEnds(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	r := instantiate(t, out, true)
	_, used, err := r.call(1<<40, "fib", 15)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.call(used, "fib", 15); err != nil {
		t.Errorf("with all it needs: %v", err)
	}
	r = instantiate(t, out, true)
	// The very last block is charged without a check: the host sees it in the global.
	_, _, err = r.call(used-100, "fib", 15)
	if err == nil || int64(r.fuel.Get()) >= 0 {
		t.Errorf("with 100 too little: %v, fuel %d", err, int64(r.fuel.Get()))
	}
}

func TestAModuleBeginsWithoutFuel(t *testing.T) {
	out, _ := rewrite(t, wat(t, everything))
	r := instantiate(t, out, true)
	if _, err := r.mod.ExportedFunction("fib").Call(context.Background(), 5); err == nil {
		t.Error("it ran")
	}
}

func TestStartFunctionIsLeftToTheHost(t *testing.T) {
	out, info := rewrite(t, wat(t, `(module (global $g (mut i32) (i32.const 1))
		(func $s (global.set $g (i32.const 2))) (start $s) (func (export "get") (result i32) (global.get $g)))`))
	if !info.Start {
		t.Error("info does not tell of the start function")
	}
	r := instantiate(t, out, true)
	if v, _, _ := r.call(100, "get"); v[0] != 1 {
		t.Error("the engine started it")
	}
	if _, used, err := r.call(100, meter.StartExport); err != nil || used < 2 {
		t.Errorf("start: used %d, %v", used, err)
	}
	if v, _, _ := r.call(100, "get"); v[0] != 2 {
		t.Error("starting it did nothing")
	}
}

func TestSizesAreCharged(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module (memory (export "memory") 32) (table $t 1000 externref)
		(data $d "0123456789012345678901234567890123456789012345678901234567890123456789") (table $f 9 funcref) (elem $e funcref (ref.null func) (ref.null func))
		(func (export "fill") (param i32) (memory.fill (i32.const 0) (i32.const 1) (local.get 0)))
		(func (export "copy") (param i32) (memory.copy (i32.const 0) (i32.const 1) (local.get 0)))
		(func (export "init") (param i32) (memory.init $d (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "grow") (param i32) (drop (memory.grow (local.get 0))))
		(func (export "tfill") (param i32) (table.fill $t (i32.const 0) (ref.null extern) (local.get 0)))
		(func (export "tcopy") (param i32) (table.copy $t $t (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "tinit") (param i32) (table.init $f $e (i32.const 0) (i32.const 0) (local.get 0)))
		(func (export "tgrow") (param i32) (drop (table.grow $t (ref.null extern) (local.get 0)))))`))
	for _, c := range []struct {
		name string
		n    uint64
		more int64 // than for 0
	}{
		{"fill", 1 << 20, 1 << 17}, {"copy", 1 << 20, 1 << 17}, {"init", 64, 8}, {"grow", 3, 3 * 4096},
		{"tfill", 900, 900}, {"tcopy", 900, 900}, {"tinit", 2, 2}, {"tgrow", 50, 800},
	} {
		_, zero, err0 := instantiate(t, out, true).call(1<<40, c.name, 0)
		_, some, err := instantiate(t, out, true).call(1<<40, c.name, c.n)
		if err0 != nil || err != nil || some-zero != c.more {
			t.Errorf("%s(%d) costs %d more than none (%d), want %d: %v %v", c.name, c.n, some-zero, zero, c.more, err0, err)
		}
	}
}

func TestStackIsBoundedByTheSizeOfFrames(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module
		(func $small (export "small") (param i32) (result i32)
		  (if (result i32) (local.get 0) (then (i32.add (i32.const 1) (call $small (i32.sub (local.get 0) (i32.const 1))))) (else (i32.const 0))))
		(func $large (export "large") (param i32) (result i32) (local `+strings.Repeat("i64 ", 1000)+`)
		  (if (result i32) (local.get 0) (then (i32.add (i32.const 1) (call $large (i32.sub (local.get 0) (i32.const 1))))) (else (i32.const 0)))))`))
	r := instantiate(t, out, true)
	for _, c := range []struct {
		name  string
		depth uint64
		ok    bool
	}{{"small", 30_000, true}, {"small", 100_000, false}, {"large", 900, true}, {"large", 30_000, false}} {
		v, _, err := r.call(1<<40, c.name, c.depth)
		if c.ok && (err != nil || v[0] != c.depth) {
			t.Errorf("%s(%d): %v %v", c.name, c.depth, v, err)
		}
		if !c.ok {
			if err == nil || int64(r.stack.Get()) >= 0 {
				t.Errorf("%s(%d) went through", c.name, c.depth)
			}
			r = instantiate(t, out, true)
		}
	}
}

// TestOverdraftIsBounded: between two checks a module can do no more than doc.go says.
func TestOverdraftIsBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`(module (func $leaf (param i64) (result i64) ` + `(i64.add (local.get 0) (i64.const 1))` + strings.Repeat(`(i64.const 1) i64.add `, 20) + `)
		(func $mid (param i64) (result i64) (local.get 0) ` + strings.Repeat(`(call $leaf)`, 20_000) + `)
		(func (export "go") (result i64) (call $mid (i64.const 1)) ` + strings.Repeat(`(call $mid)`, 5000) + `))`)
	out, _ := rewrite(t, wat(t, b.String()))
	r := instantiate(t, out, true)
	_, _, err := r.call(1000, "go")
	if left := int64(r.fuel.Get()); err == nil || left > 0 || left < -3_000_000 {
		t.Errorf("fuel ends at %d: %v", left, err)
	}
}

func TestRefusalsNameWhatAndWhere(t *testing.T) {
	mod := func(sections ...string) []byte {
		b, err := hex.DecodeString("0061736d01000000" + strings.ReplaceAll(strings.Join(sections, ""), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const one = "01 04 01 60 00 00  03 02 01 00" // a function type without anything, and one function of it
	code := func(body string) string {
		n := len(strings.ReplaceAll(body, " ", "")) / 2
		return fmt.Sprintf("0a %02x 01 %02x %s", n+2, n, body)
	}
	for _, c := range []struct {
		name string
		wasm []byte
		want string
	}{
		{"empty", nil, `not a WebAssembly module`},
		{"text", []byte("(module (func))"), `not a WebAssembly module: it does not begin with \\0asm`},
		{"component", []byte("\x00asm\x0d\x00\x01\x00"), `a component, not a core module`},
		{"future version", []byte("\x00asm\x02\x00\x00\x00"), `binary format version 02000000, want 1`},
		{"cut section", mod("01 05 01 60"), `at byte 8: section 1: it ends early: 5 bytes wanted, 2 left`},
		{"section order", mod("03 01 00 01 01 00"), `type section: at byte 11: it is out of order or doubled`},
		{"doubled section", mod("01 01 00 01 01 00"), `type section: at byte 11: it is out of order or doubled`},
		{"unknown section", mod("0e 00"), `there is no section 14`},
		{"tag section", mod("0d 00"), `tag section: exception handling is not supported`},
		{"many types", mod("01 05 ff ff ff ff 0f"), `type section: .*4294967295 types, the limit is 4096`},
		{"lying count", mod("01 02 ff 07"), `type section: .*1023 types announced, but only 0 bytes follow`},
		{"gc type", mod("01 04 01 5f 00 00"), `type 0 has form 0x5f: only function types`},
		{"shared memory", mod("05 04 01 03 01 01"), `a shared memory: threads are not supported`},
		{"memory64", mod("05 03 01 04 01"), `a 64-bit memory is not supported`},
		{"two memories", mod("05 05 02 00 01 00 01"), `2 memories, the limit is 1`},
		{"memory limits", mod("05 04 01 01 02 01"), `a memory with a maximum of 1 below its minimum of 2`},
		{"global of extended constant", mod("06 09 01 7f 00 41 01 41 02 6a 0b"), `global section`},
		{"global of itself", mod("06 06 01 7f 00 23 00 0b"), `reads global 0, which is not defined before it`},
		{"export of nothing", mod("07 05 01 01 61 00 00"), `function 0 does not exist, there are 0`},
		{"export of the fuel", mod("06 06 01 7f 00 41 00 0b 07 05 01 01 61 03 01"), `export "a" names index 1 of 1`},
		{"function without a body", mod(one), `1 functions are declared, 0 have a body`},
		{"fuel", mod(one, code("00 42 00 24 00 0b")), `function 0: at byte 3: global 0 does not exist, there are 0`},
		{"atomics", mod(one, code("00 fe 00 00 0b")), `opcode 0xfe: threads \(atomic instructions\) are not supported`},
		{"tail call", mod(one, code("00 12 00 0b")), `opcode 0x12: tail calls \(return_call\) are not supported`},
		{"throw", mod(one, code("00 08 00 0b")), `exception handling`},
		{"call_ref", mod(one, code("00 14 00 0b")), `typed function references`},
		{"unknown opcode", mod(one, code("00 ff 0b")), `opcode 0xff: it is no instruction of WebAssembly 2.0`},
		{"relaxed simd", mod(one, code("00 fd 80 02 0b")), `opcode 0xfd 256: relaxed SIMD is not supported`},
		{"vector opcode in long form", mod(one, code("00 fd 8c 00 0b")), `opcode 0xfd 12 is not written in its shortest form`},
		{"bulk opcode in long form", mod(one, code("00 fc 8b 00 00 0b")), `opcode 0xfc 11 is not written in its shortest form`},
		{"branch out", mod(one, code("00 0c 01 0b")), `a branch to label 1, only 1 blocks are open`},
		{"else alone", mod(one, code("00 05 0b")), `else outside of an if`},
		{"no end", mod(one, code("00 01 01")), `it ends inside a block`},
		{"more after the end", mod(one, code("00 0b 0b")), `1 bytes follow its end`},
		{"local", mod(one, code("00 20 00 1a 0b")), `local 0 does not exist, there are 0`},
		{"scratch local", mod("05 03 01 00 01", ""), ``},
		{"call", mod(one, code("00 10 01 0b")), `function 1 does not exist, there are 1`},
		{"table", mod(one, code("00 fc 10 00 1a 0b")), `table 0 does not exist`},
		{"data", mod(one, code("00 fc 09 00 0b")), `data segment 0 does not exist`},
		{"memory missing", mod(one, code("00 41 00 28 02 00 1a 0b")), `a memory instruction without a memory`},
		{"number too long", mod(one, code("00 41 ff ff ff ff 7f 41 80 80 80 80 80 01 0b")), `a number does not fit 32 bits`},
		{"block type", mod(one, code("00 02 7a 0b 0b")), `block type`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := meter.Rewrite(c.wasm, meter.DefaultLimits())
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				t.Fatal("it is let through")
			}
			var named *meter.Error
			if !errors.As(err, &named) || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Fatalf("error %q, want %q", err, c.want)
			}
		})
	}
}

func TestErrorsNameTheFunction(t *testing.T) {
	raw := wat(t, `(module (func $harmless) (func $bomb (local `+strings.Repeat("i32 ", 2001)+`)))`)
	_, _, err := meter.Rewrite(raw, meter.DefaultLimits())
	if err == nil || !strings.Contains(err.Error(), "function 1 (bomb)") {
		t.Error(err)
	}
}

func TestNamesSurviveForTraps(t *testing.T) {
	out, _ := rewrite(t, wat(t, `(module (func $culprit (unreachable)) (func (export "go") (call $culprit)))`))
	_, _, err := instantiate(t, out, true).call(1000, "go")
	if err == nil || !strings.Contains(err.Error(), ".culprit()") {
		t.Errorf("the trap does not name the function: %v", err)
	}
}

func TestHostileNameSectionsAreDropped(t *testing.T) {
	name := func(content string) []byte {
		c := "\x04name" + content
		return append([]byte("\x00asm\x01\x00\x00\x00\x00"+string(rune(len(c)))), c...)
	}
	for _, content := range []string{
		"\x01\x05\xff\xff\xff\xff\x0f",         // four billion names
		"\x02\x07\x01\x00\xff\xff\xff\xff\x0f", // as many names of locals
		"\x01\x05\x01\x00\x02\xff\xfe",         // no UTF-8
		"\x00\xff",                             // cut off
	} {
		out, _, err := meter.Rewrite(name(content), meter.DefaultLimits())
		if err != nil {
			t.Errorf("%q: %v", content, err)
			continue
		}
		if len(out) > 100 || bytes.Contains(out, []byte("name")) {
			t.Errorf("%q is kept: %q", content, out)
		}
	}
}
