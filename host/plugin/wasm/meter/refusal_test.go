package meter_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

func TestRefusalsNameReasonAndLocation(t *testing.T) {
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
		{"empty", nil, `not a WebAssembly module: the file is empty`},
		{"ref.func in code", mod(one, code("00 d2 00 1a 0b")), `ref.func in code is not supported`},
		{"text", []byte("(module (func))"), `not a WebAssembly module: it is in the text format: assemble it`},
		{"source", []byte("package main\n"), `it is source code: build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared`},
		{"data", []byte("hello, world"), `not a WebAssembly module: it does not start with the magic number 00 61 73 6d`},
		{"program", []byte("\x7fELF\x02\x01\x01\x00\x00"), `a program or library for Linux: build it with GOOS=wasip1`},
		{"gzip", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00"), `compressed with gzip: decompress it`},
		{"tar", append(make([]byte, 257), "ustar\x0000"...), `a tar archive: extract the module`},
		{"component", []byte("\x00asm\x0d\x00\x01\x00"), `a component, not a core module: .*GOOS=wasip1.* wasm-tools component unbundle`},
		{"future version", []byte("\x00asm\x02\x00\x00\x00"), `binary format version 02000000, want 1`},
		{"cut section", mod("01 05 01 60"), `at byte 8: section 1: unexpected end: 5 bytes wanted, 2 left`},
		{"section order", mod("03 01 00 01 01 00"), `type section: at byte 11: out of order or duplicate`},
		{"doubled section", mod("01 01 00 01 01 00"), `type section: at byte 11: out of order or duplicate`},
		{"unknown section", mod("0e 00"), `unknown section 14`},
		{"tag section", mod("0d 00"), `tag section: exception handling .* is not supported`},
		{"many types", mod("01 05 ff ff ff ff 0f"), `type section: .*4294967295 types, the limit is 4096`},
		{"lying count", mod("01 02 ff 07"), `type section: .*1023 types, but only 0 bytes follow`},
		{"gc type", mod("01 04 01 5f 00 00"), `type 0 has form 0x5f: only function types`},
		{"shared memory", mod("05 04 01 03 01 01"), `a shared memory: threads .* are not supported`},
		{"memory64", mod("05 03 01 04 01"), `a 64-bit memory is not supported`},
		{"two memories", mod("05 05 02 00 01 00 01"), `2 memories: a second memory is not supported: .* -mno-multimemory`},
		{"memory limits", mod("05 04 01 01 02 01"), `a memory with a maximum of 1 below its minimum of 2`},
		{"global of extended constant", mod("06 09 01 7f 00 41 01 41 02 6a 0b"), `global section`},
		{"global of itself", mod("06 06 01 7f 00 23 00 0b"), `reads global 0, which is not defined before it`},
		{"export of nothing", mod("07 05 01 01 61 00 00"), `function 0 does not exist, there are 0`},
		{"export of the fuel", mod("06 06 01 7f 00 41 00 0b 07 05 01 01 61 03 01"), `export "a" has index 1 of 1`},
		{"function without a body", mod(one), `1 functions are declared, 0 have a body`},
		{"fuel", mod(one, code("00 42 00 24 00 0b")), `function 0: at byte 3: global 0 does not exist, there are 0`},
		{"atomics", mod(one, code("00 fe 00 00 0b")), `opcode 0xfe: threads \(atomic instructions\) are not supported`},
		{"tail call", mod(one, code("00 12 00 0b")), `opcode 0x12: tail calls \(return_call\) are not supported`},
		{"throw", mod(one, code("00 08 00 0b")), `exception handling`},
		{"call_ref", mod(one, code("00 14 00 0b")), `typed function references`},
		{"unknown opcode", mod(one, code("00 ff 0b")), `opcode 0xff: not an instruction of WebAssembly 2.0`},
		{"relaxed simd", mod(one, code("00 fd 80 02 0b")), `opcode 0xfd 256: relaxed SIMD is not supported`},
		{"vector opcode in long form", mod(one, code("00 fd 8c 00 0b")), `opcode 0xfd 12 is not in its shortest encoding`},
		{"bulk opcode in long form", mod(one, code("00 fc 8b 00 00 0b")), `opcode 0xfc 11 is not in its shortest encoding`},
		{"branch out", mod(one, code("00 0c 01 0b")), `a branch to label 1, only 1 blocks are open`},
		{"else alone", mod(one, code("00 05 0b")), `else outside of an if`},
		{"no end", mod(one, code("00 01 01")), `unexpected end inside a block`},
		{"more after the end", mod(one, code("00 0b 0b")), `1 bytes after the end`},
		{"local", mod(one, code("00 20 00 1a 0b")), `local 0 does not exist, there are 0`},
		{"scratch local", mod("05 03 01 00 01", ""), ``},
		{"call", mod(one, code("00 10 01 0b")), `function 1 does not exist, there are 1`},
		{"table", mod(one, code("00 fc 10 00 1a 0b")), `table 0 does not exist`},
		{"data", mod(one, code("00 fc 09 00 0b")), `data segment 0 does not exist`},
		{"memory missing", mod(one, code("00 41 00 28 02 00 1a 0b")), `a memory instruction without a memory`},
		{"number too long", mod(one, code("00 41 ff ff ff ff 7f 41 80 80 80 80 80 01 0b")), `integer too large for 32 bits`},
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
				t.Fatal("accepted, want an error")
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

func TestFunctionNamesAreKeptForTraps(t *testing.T) {
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

// TestNamesInErrorsAreBounded: names come from the module, and errors reach logs and terminals.
func TestNamesInErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("\x1b[2Jä", 1<<20)
	section := func(id byte, content []byte) []byte {
		return append(binary.AppendUvarint([]byte{id}, uint64(len(content))), content...)
	}
	name := func(s string) []byte { return append(binary.AppendUvarint(nil, uint64(len(s))), s...) }
	module := func(sections ...[]byte) []byte {
		return append([]byte("\x00asm\x01\x00\x00\x00"), bytes.Join(sections, nil)...)
	}
	types := section(1, []byte{1, 0x60, 0, 0})
	imported := func(mod, field string, kind ...byte) []byte {
		return section(2, bytes.Join([][]byte{{1}, name(mod), name(field), kind}, nil))
	}
	export := func(field string, kind ...byte) []byte {
		one := append(name(field), kind...)
		return section(7, bytes.Join([][]byte{{2}, one, one}, nil))
	}
	function := [][]byte{section(3, []byte{1, 0}), section(10, []byte{1, 2, 0, 0x0b})}
	for i, wasm := range [][]byte{
		module(types, imported(long, long, 1, 0x70, 0, 0)),
		module(types, imported(long, "x", 4, 0, 0)),
		module(types, imported("x", long, 9)),
		module(types, imported("sluice.meter."+long, long, 0, 0)),
		module(types, function[0], export(long, 0, 0), function[1]), // twice the same
		module(types, function[0], export("sluice.meter."+long, 0, 0), function[1]),
		module(types, function[0], export(long, 9, 0), function[1]),
		module(types, function[0], export(long, 3, 0), function[1]),
	} {
		_, _, err := meter.Rewrite(wasm, meter.DefaultLimits())
		if err == nil || len(err.Error()) > 4000 || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("module %d: %.300q", i, fmt.Sprint(err))
		}
	}
}
