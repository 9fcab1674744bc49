package wasm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

// local is the engine in this process.
type local struct {
	ctx      context.Context // of all guest calls; without deadline: fuel ends them
	info     *meter.Info
	limits   Limits
	log      *slog.Logger
	memory   *budget
	stored   *storedCode
	outline  int64 // bytes of the module without function bodies
	runtime  wazero.Runtime
	cache    wazero.CompilationCache
	compiled wazero.CompiledModule
}

// load loads the code of a module from an entry.
func (l *local) load(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in the engine: %v", r)
		}
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	files := l.stored.files
	if l.info, err = files.description(); err != nil {
		return err
	}
	if l.stored.memory, err = newImage(files.memory); err != nil {
		return err
	}
	outline, err := readFile(files.outline, maxMetered)
	if err != nil {
		return err
	}
	l.outline = int64(len(outline))
	if l.cache, err = cacheOf(l.stored); err != nil {
		return err
	}
	l.runtime = newRuntime(ctx, l.cache, l.limits.MemoryPages)
	if err := l.addImports(ctx); err != nil {
		return err
	}
	if l.compiled, err = l.runtime.CompileModule(ctx, outline); err != nil {
		return err
	}
	return l.stored.place()
}

// key implements engine.
func (l *local) key() string { return l.stored.key }

// newRuntime returns a runtime with a cache of compiled code.
func newRuntime(ctx context.Context, cache wazero.CompilationCache, memoryPages uint32) wazero.Runtime {
	// Not WithCloseOnContextDone: it slows down calls and does not stop all guests. Fuel does.
	// The compiler in any case: without memory for code, NewRuntimeConfig chooses the interpreter.
	return wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().
		WithCoreFeatures(api.CoreFeaturesV2).
		WithMemoryLimitPages(memoryPages).
		WithDebugInfoEnabled(false).
		WithCompilationCache(cache))
}

// elementBytes is what wazero stores for an element of a segment: an expression with its bytes.
const elementBytes = 64

// bytes implements engine: the code, all of which may become resident, the outline of the module, what the runtime decodes from it, and
// tables. Linear memories are not in it.
func (l *local) bytes() int64 {
	return l.stored.size + 2*l.outline + int64(l.info.Elements)*elementBytes + int64(l.info.TableMax)*8
}

// forget implements engine.
func (l *local) forget() { l.stored.forget() }

// open implements engine.
func (l *local) open(o instanceOptions) (_ instance, err error) {
	s := &sandbox{l: l}
	if err := s.instantiate(o); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// close implements engine.
func (l *local) close() error {
	ctx := context.Background()
	var errs []error
	if l.runtime != nil {
		errs = append(errs, l.runtime.Close(ctx))
	}
	if l.cache != nil {
		errs = append(errs, l.cache.Close(ctx))
	}
	l.stored.close()
	l.stored.files.close()
	l.runtime, l.cache, l.compiled = nil, nil, nil
	return errors.Join(errs...)
}

// instantiate makes the module's instance and its memory.
func (l *local) instantiate(o instanceOptions) (module api.Module, memory *linearMemory, err error) {
	memory = &linearMemory{image: l.stored.memory, budget: l.memory, leave: o.leave}
	defer func() {
		if r := recover(); r != nil {
			cause, ok := r.(error)
			if !ok {
				cause = fmt.Errorf("panic: %v", r)
			}
			err = cause
		}
		if err != nil {
			memory.Free() // wazero does not, if it fails later
			module, memory, err = nil, nil, fmt.Errorf("instantiate: %w", firstLine(err))
		}
	}()
	ctx := experimental.WithMemoryAllocator(l.ctx, memory)
	module, err = l.runtime.InstantiateModule(ctx, l.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	return module, memory, err
}
