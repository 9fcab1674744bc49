package meter

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Section numbers of the binary format.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	secTag
)

func sectionNames() []string {
	return []string{"custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element",
		"code", "data", "data count", "tag"}
}

// FuncType is the signature of a function. The bytes are value types of the binary format (0x7f i32, 0x7e i64, 0x7d
// f32, 0x7c f64, 0x7b v128, 0x70 funcref, 0x6f externref).
type FuncType struct{ Params, Results []byte }

// String returns t in the text format: (i32 i32) -> (i64).
func (t FuncType) String() string {
	return "(" + valTypes(t.Params) + ") -> (" + valTypes(t.Results) + ")"
}

func valTypes(ts []byte) string {
	names := make([]string, len(ts))
	for i, t := range ts {
		switch t {
		case 0x7f:
			names[i] = "i32"
		case 0x7e:
			names[i] = "i64"
		case 0x7d:
			names[i] = "f32"
		case 0x7c:
			names[i] = "f64"
		case 0x7b:
			names[i] = "v128"
		case 0x70:
			names[i] = "funcref"
		case 0x6f:
			names[i] = "externref"
		}
	}
	return strings.Join(names, " ")
}

// Import is a function that the module imports.
type Import struct {
	Module, Name string
	Type         FuncType
}

// Kinds of an Export.
const (
	KindFunc   = 0
	KindTable  = 1
	KindMemory = 2
	KindGlobal = 3
)

// Export is an export of the module.
type Export struct {
	Name string
	Kind byte
	Type FuncType // of a function
}

// Producer is an entry of the producers section: what made the module, as it says itself.
type Producer struct{ Field, Name, Version string }

// module contains the checked sections of a guest. Slices refer to the input.
type module struct {
	limits          *Limits
	ops             *[256]opcode
	vectors         *[256]effect
	sections        [secTag][]byte // content by section number; nil: absent
	types           []FuncType
	imports         []Import
	funcs           []uint32 // type of each function, imports first
	tables          []table
	globals         []byte // their types
	mutableGlobals  int
	exports         []Export
	elementSegments int
	elements        int // of all segments
	dataSegments    int // from the data count section if there is one
	hasCount        bool
	dataBytes       int   // of all segments
	dataSizes       []int // of the segments, bytes
	memory          *memory
	start           uint32
	hasStart        bool
	hostReachable   bool // an imported function is callable through a table or a reference
	names           map[uint32]string
	modName         string
	producers       []Producer
	bodies          [][]byte
}

type table struct {
	ref      byte
	min, max uint32
}

type memory struct {
	min, max uint32
	hasMax   bool
}

func (m *memory) isFar() bool { return !m.hasMax || m.max > nearPages }

// split splits the input into sections and checks their order.
func (m *module) split(wasm []byte) error {
	if len(wasm) > m.limits.Module {
		return refuse("%d bytes, the limit is %d", len(wasm), m.limits.Module)
	}
	if len(wasm) < 8 || string(wasm[:4]) != "\x00asm" {
		return refuse("not a WebAssembly module: %s", describeFile(wasm))
	}
	if v := string(wasm[4:8]); v != "\x01\x00\x00\x00" {
		if v[2] == 1 {
			return refuse(componentAdvice)
		}
		return refuse("binary format version %x, want 1", wasm[4:8])
	}
	// Order of sections: data count (12) is between element and code.
	rank := [secTag]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 10}
	names := sectionNames()
	r := reader{b: wasm, pos: 8}
	last := 0
	for r.left() > 0 {
		at := r.pos
		id := r.byte()
		content := r.bytes(int(r.u32()))
		if r.err != nil {
			return &Error{Func: -1, Offset: at, Err: fmt.Errorf("section %d: %w", id, r.err)}
		}
		switch {
		case id == secCustom:
			if err := m.custom(content); err != nil {
				return &Error{Section: "custom", Func: -1, Offset: at, Err: err}
			}
			continue
		case id == secTag:
			return refuse("tag section: %s", exceptions)
		case id > secTag:
			return &Error{Func: -1, Offset: at, Err: fmt.Errorf("unknown section %d", id)}
		case rank[id] <= last:
			return &Error{Section: names[id], Func: -1, Offset: at, Err: errors.New("out of order or duplicate")}
		}
		last = rank[id]
		m.sections[id] = content
	}
	return r.err
}

// section runs f on the content of section id and checks that it reads all of it.
func (m *module) section(id int, f func(r *reader)) error {
	if m.sections[id] == nil {
		return nil
	}
	r := &reader{b: m.sections[id]}
	f(r)
	if r.err == nil && r.left() > 0 {
		r.fail("%d unread bytes", r.left())
	}
	if r.err != nil {
		return &Error{Section: sectionNames()[id], Func: -1, Offset: r.pos, Err: r.err}
	}
	return nil
}

// parse reads all sections except function bodies.
func (m *module) parse() error {
	steps := []struct {
		id int
		f  func(*reader)
	}{
		{secType, m.readTypes}, {secImport, m.readImports}, {secFunction, m.readFunctions}, {secTable, m.readTables},
		{secMemory, m.readMemory}, {secGlobal, m.readGlobals}, {secExport, m.readExports}, {secStart, m.readStart},
		{secElement, m.readElements}, {secDataCount, m.readDataCount}, {secCode, m.readCode}, {secData, m.readData},
	}
	for _, s := range steps {
		if err := m.section(s.id, s.f); err != nil {
			return err
		}
	}
	if defined := len(m.funcs) - len(m.imports); defined != len(m.bodies) {
		return refuse("%d functions are declared, %d have a body", defined, len(m.bodies))
	}
	if m.hasCount && m.dataSegments > 0 && m.sections[secData] == nil {
		return refuse("the data count is %d, but there is no data section", m.dataSegments)
	}
	return nil
}

// name reads a UTF-8 name.
func (r *reader) name() string {
	s := r.bytes(int(r.u32()))
	if !utf8.Valid(s) {
		r.fail("a name is not valid UTF-8")
		return ""
	}
	return string(s)
}
