package sdk

import (
	"strconv"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

const levelInfo = abi.LogInfo

// guest is the plugin of this module. It is global because exported functions have no receiver.
var guest struct {
	instance instance
	buffers  [][]uint64 // allocated by sluice_alloc, kept alive
}

func register(newPlugin func() Plugin) { guest.instance.newPlugin = newPlugin }

func writeLog(level uint32, text string) {
	if len(text) > abi.MaxLogLen {
		text = text[:abi.MaxLogLen]
	}
	hostLog(level, unsafe.Pointer(unsafe.StringData(text)), uint32(len(text)))
}

// fail logs an error and returns its code.
func fail(code int64, what string) int64 {
	writeLog(abi.LogError, what)
	return code
}

//go:wasmimport sluice log
func hostLog(level uint32, text unsafe.Pointer, size uint32)

//go:wasmexport sluice_abi_version
func abiVersion() uint32 { return abi.Major<<16 | abi.Minor }

//go:wasmexport sluice_needs
func needs(handle uint32) (bits int32) {
	defer recoverAs(&bits)
	p, err := guest.instance.pluginFor(handle)
	if err != nil {
		return int32(fail(int64(abi.CodeNotConfigured), err.Error()))
	}
	return int32(needsOf(p))
}

// alloc allocates 8-byte aligned memory for the life of the instance.
//
//go:wasmexport sluice_alloc
func alloc(size uint32) unsafe.Pointer {
	b := make([]uint64, (int(size)+7)/8+1)
	guest.buffers = append(guest.buffers, b)
	return unsafe.Pointer(unsafe.SliceData(b))
}

//go:wasmexport sluice_configure
func configure(settings unsafe.Pointer, size uint32) (handle int32) {
	defer recoverAs(&handle)
	// A copy, because the plugin may keep it.
	text := append([]byte(nil), unsafe.Slice((*byte)(settings), size)...)
	handle, err := guest.instance.configure(text)
	if err != nil {
		return int32(fail(int64(handle), err.Error()))
	}
	return handle
}

//go:wasmexport sluice_keys
func keys(handle uint32, to unsafe.Pointer, room uint32) (n int32) {
	defer recoverAs(&n)
	n, err := guest.instance.writeKeys(handle, unsafe.Slice((*byte)(to), room))
	if err != nil {
		return int32(fail(int64(n), err.Error()))
	}
	return n
}

// recoverAs is deferred: it turns a panic into an error code.
func recoverAs(code *int32) {
	if p := recover(); p != nil {
		*code = int32(fail(abi.CodeFailed, "panic: "+panicText(p)))
	}
}

// panicText returns the text of a panic. Only package fmt could format any value.
func panicText(p any) string {
	switch p := p.(type) {
	case error:
		return p.Error()
	case string:
		return p
	case interface{ String() string }:
		return p.String()
	case int:
		return strconv.Itoa(p)
	}
	return "a value that is neither an error nor a text"
}

// decide does not recover from panics, which would cost every call. Go's runtime prints the panic to standard error and
// exits, and the host discards the instance.
//
//go:wasmexport sluice_decide
func decide(req unsafe.Pointer, size uint32, resp unsafe.Pointer, room uint32) int64 {
	n := guest.instance.decide(req, uint64(size), resp, uint64(room))
	if n < 0 {
		return fail(n, guest.instance.err.Error())
	}
	return n
}
