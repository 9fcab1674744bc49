package wasm

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/tetratelabs/wazero"
)

// dropBodies frees the function bodies of a module that has been compiled, and returns how many bytes they had. wazero keeps them, but
// reads them only to compile. They are not part of its API: with another layout than expected, dropBodies returns an error and changes nothing.
func dropBodies(compiled wazero.CompiledModule) (freed int, err error) {
	defer func() {
		if r := recover(); r != nil {
			freed, err = 0, fmt.Errorf("function bodies: another layout than expected of wazero: %v", r)
		}
	}()
	code := reflect.ValueOf(compiled).Elem().FieldByName("module").Elem().FieldByName("CodeSection")
	if f, ok := code.Type().Elem().FieldByName("Body"); !ok || f.Type != reflect.TypeFor[[]byte]() {
		return 0, fmt.Errorf("function bodies: another layout than expected of wazero")
	}
	for i := range code.Len() {
		body := (*[]byte)(unsafe.Pointer(code.Index(i).FieldByName("Body").UnsafeAddr()))
		freed += len(*body)
		*body = nil
	}
	return freed, nil
}
