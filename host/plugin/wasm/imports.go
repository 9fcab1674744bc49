package wasm

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/registers"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// hostFunc is a function that guests may import.
type hostFunc struct {
	sig string
	run func(s *sandbox, stack []uint64) // arguments in stack, result in stack[0]
}

// Fuel for what a host call does, in addition to the fuel that package meter charges for leaving the sandbox. It depends on
// the arguments and the guest's memory only, so that a call uses the same fuel on every node.
const (
	fuelItem = 16   // a vector of fd_write, an end of line, a subscription of poll_oneoff
	fuelByte = 1    // a byte that is logged, written or random
	fuelLine = 1024 // a line for the log, dropped or not
)

const (
	sluiceModule = "sluice"
	wasiModule   = "wasi_snapshot_preview1"
)

// hostFuncs returns all functions that a guest may import, by module and name: sluice.log, and the functions of WASI
// preview 1 that the startup code of Go, TinyGo and wasi-libc needs. There are no files, arguments, environment or sockets;
// the clock is fixed and random numbers are the same in every instance.
func hostFuncs() map[string]map[string]hostFunc {
	return map[string]map[string]hostFunc{
		sluiceModule: {
			"log": {"(i32 i32 i32) -> ()", importLog},
		},
		wasiModule: {
			"args_get":            {"(i32 i32) -> (i32)", returnErrno(errnoSuccess)},
			"args_sizes_get":      {"(i32 i32) -> (i32)", wasiNoSizes},
			"environ_get":         {"(i32 i32) -> (i32)", returnErrno(errnoSuccess)},
			"environ_sizes_get":   {"(i32 i32) -> (i32)", wasiNoSizes},
			"clock_res_get":       {"(i32 i32) -> (i32)", wasiClockRes},
			"clock_time_get":      {"(i32 i64 i32) -> (i32)", wasiClock},
			"fd_close":            {"(i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_fdstat_get":       {"(i32 i32) -> (i32)", wasiFdstat},
			"fd_fdstat_set_flags": {"(i32 i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_prestat_get":      {"(i32 i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_prestat_dir_name": {"(i32 i32 i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_read":             {"(i32 i32 i32 i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_seek":             {"(i32 i64 i32 i32) -> (i32)", returnErrno(errnoBadf)},
			"fd_write":            {"(i32 i32 i32 i32) -> (i32)", wasiWrite},
			"poll_oneoff":         {"(i32 i32 i32 i32) -> (i32)", wasiPoll},
			"proc_exit":           {"(i32) -> ()", wasiExit},
			"random_get":          {"(i32 i32) -> (i32)", wasiRandom},
			"sched_yield":         {"() -> (i32)", returnErrno(errnoSuccess)},
		},
	}
}

// checkImport refuses an import that is not in hostFuncs.
func checkImport(im meter.Import) error {
	all := hostFuncs()
	f, ok := all[im.Module][im.Name]
	switch {
	case ok && f.sig == im.Type.String():
		return nil
	case ok:
		return fmt.Errorf("module refused: import %s of %s has type %s, want %s", meter.Quote(im.Name), meter.Quote(im.Module), im.Type, f.sig)
	case all[im.Module] == nil:
		return fmt.Errorf("module refused: import %s of %s: plugins can import from %q and %q only: %s",
			meter.Quote(im.Name), meter.Quote(im.Module), sluiceModule, wasiModule, importAdvice(im.Module))
	}
	names := make([]string, 0, len(all[im.Module]))
	for n := range all[im.Module] {
		names = append(names, n)
	}
	sort.Strings(names)
	return fmt.Errorf("module refused: import %s of %s is not available: plugins have no files, sockets or threads: leave out what needs it; available are %s",
		meter.Quote(im.Name), meter.Quote(im.Module), strings.Join(names, ", "))
}

// sandboxKey is the key of the calling guest in the context of a call.
type sandboxKey struct{}

// addImports instantiates the host modules, with the functions that the module imports.
func (l *local) addImports(ctx context.Context) error {
	all := hostFuncs()
	for _, module := range []string{sluiceModule, wasiModule} {
		b := l.runtime.NewHostModuleBuilder(module)
		seen := map[string]bool{}
		for _, im := range l.info.Imports {
			if im.Module != module || seen[im.Name] {
				continue
			}
			seen[im.Name] = true
			run := all[module][im.Name].run
			b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
				s := ctx.Value(sandboxKey{}).(*sandbox)
				s.charge(0) // code without loops does not check its fuel between host calls
				run(s, stack)
				registers.Clear()
			}), valueTypes(im.Type.Params), valueTypes(im.Type.Results)).Export(im.Name)
		}
		if len(seen) == 0 {
			continue
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("instantiate host module %s: %w", module, err)
		}
	}
	return nil
}

func valueTypes(b []byte) []api.ValueType { return slices.Clone(b) }

// importLog implements sluice.log(level, ptr, len).
func importLog(s *sandbox, stack []uint64) {
	n := min(uint32(stack[2]), abi.MaxLogLen)
	s.charge(fuelLine + int64(n)*fuelByte)
	text, ok := s.memory.Read(uint32(stack[1]), n)
	if !ok {
		panic(fmt.Errorf("sluice.log: %d bytes at address %d are outside the guest's memory", n, uint32(stack[1])))
	}
	s.log(uint32(stack[0]), text)
}

// put32 writes to the guest's memory; an address outside it ends the guest.
func (s *sandbox) put32(at, v uint32) {
	if !s.memory.WriteUint32Le(at, v) {
		panic(fmt.Errorf("result address %d is outside the guest's memory", at))
	}
}

func (s *sandbox) put64(at uint32, v uint64) {
	if !s.memory.WriteUint64Le(at, v) {
		panic(fmt.Errorf("result address %d is outside the guest's memory", at))
	}
}

func (s *sandbox) read(at, n uint32) []byte {
	b, ok := s.memory.Read(at, n)
	if !ok {
		panic(fmt.Errorf("%d bytes at address %d are outside the guest's memory", n, at))
	}
	return b
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
