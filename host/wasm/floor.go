package wasm

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/tetratelabs/wazero/api"
)

// globalAddress returns the address of a mutable i64 global of an instance, for the watchdog: it stores there while the
// guest runs, from a thread that cannot call Go functions such as Set. This is sound because
//
//   - wazero's compiler has the values of an instance's own globals in one block of memory, which it allocates in Go, and neither moves
//     nor replaces. The instance keeps it alive.
//   - The block is aligned to 16 bytes and each global to 8, so processors read and write them in one piece.
//   - Compiled code loads a global from there after each place where control flow joins, such as a loop header, and after each call; in
//     between it may use an earlier value. The meter's checks are in such places.
//   - No code of the guest can name the global, so nobody else writes it while the guest runs.
//
// The block is not part of wazero's API. It is found by the value that Set stores in it, so another layout is an error here, and
// not a store to another place.
func globalAddress(g api.MutableGlobal) (at *uint64, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("address of a global: another layout than expected of wazero: %v", r)
		}
	}()
	engine := reflect.ValueOf(g).FieldByName("g").Elem().FieldByName("Me").Elem().Elem()
	block := engine.FieldByName("opaque")
	words := unsafe.Slice((*uint64)(block.UnsafePointer()), block.Len()/8)
	const mark = 0x736c756963652121
	before := g.Get()
	g.Set(mark)
	for i := range words {
		if words[i] != mark {
			continue
		}
		if at != nil {
			return nil, errors.New("address of a global: ambiguous")
		}
		at = &words[i]
	}
	g.Set(before)
	if at == nil || *at != before {
		return nil, errors.New("address of a global: not found")
	}
	return at, nil
}
