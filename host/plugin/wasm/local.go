package wasm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// local is the engine in this process.
type local struct {
	ctx      context.Context // of all guest calls; without deadline: fuel ends them
	info     *meter.Info
	limits   Limits
	log      *slog.Logger
	memory   *budget
	files    *entryFiles
	image    *image // of a new memory; nil: the outline has data segments
	size     int64  // bytes of the code
	mapped   []byte // the code, once mapCode has mapped it
	outline  int64  // bytes of the module without function bodies
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
	if l.info, err = l.files.description(); err != nil {
		return err
	}
	if l.image, err = newImage(l.files.memory); err != nil {
		return err
	}
	outline, err := readFile(l.files.outline, maxMetered)
	if err != nil {
		return err
	}
	l.outline = int64(len(outline))
	l.cache, l.size, err = l.files.compiled(func(cache wazero.CompilationCache) (err error) {
		l.runtime = newRuntime(ctx, cache, l.limits.MemoryPages)
		if err := l.addImports(ctx); err != nil {
			return err
		}
		l.compiled, err = l.runtime.CompileModule(ctx, outline)
		return err
	})
	return err
}

// mapCode maps the code from its file. No other code may be loaded or closed meanwhile.
func (l *local) mapCode(maps *mapping.Maps) (err error) {
	if l.files.code != nil {
		l.mapped, err = maps.Replace(l.files.code)
	}
	return err
}

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

// bytes implements engine: the code, all of which may become resident, the outline of the module, what the runtime decodes from
// it, and tables. Linear memories are not in it.
func (l *local) bytes() int64 {
	return l.size + 2*l.outline + int64(l.info.Elements)*elementBytes + int64(l.info.TableMax)*8
}

// forget implements engine.
func (l *local) forget() { mapping.Forget(l.mapped) }

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
	l.files.close()
	l.runtime, l.cache, l.compiled = nil, nil, nil
	return errors.Join(errs...)
}

// instantiate makes the module's instance and its memory.
func (l *local) instantiate(o instanceOptions) (module api.Module, memory *linearMemory, err error) {
	memory = &linearMemory{image: l.image, budget: l.memory, leave: o.leave}
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
