package wasm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

// compile sets c.info, c.runtime and c.compiled, from precompiled code or the cache if they have the code of the module. Otherwise the module is metered and
// compiled into a folder, in a child process if there is a compiler, loaded from there, and the folder is added to the cache.
func (h *Host) compile(ctx context.Context, c *code, log *slog.Logger, wasm []byte) error {
	if err := CheckExecutable(); err != nil {
		return err
	}
	name := entryName(c.key.revision, &h.limits.Module)
	entry, err := h.precompiled.open(name)
	if err == nil {
		if err = h.load(ctx, c, &storedCode{dir: entry.dir}); err == nil || isMemoryError(err) {
			c.fromCache, c.precompiled = true, true
			return err
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Warn("precompiled code not used", "dir", h.precompiled.Dir, "err", err)
	}
	entry, err = h.cache.open(name)
	if err == nil {
		err = h.load(ctx, c, &storedCode{dir: entry.dir})
		entry.close()
		if err == nil {
			c.fromCache = true
			return nil
		}
		if isMemoryError(err) {
			return err
		}
		entry.remove()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Warn("compile cache entry not used", "dir", h.cache.dir, "err", err)
	}
	begin := h.now()
	metered, info, err := meter.Rewrite(wasm, h.limits.Module)
	if err != nil {
		return err
	}
	if err := checkABI(info); err != nil {
		return err
	}
	c.metering = h.now().Sub(begin)
	var errs []error
	for _, dir := range h.cache.folders() {
		err := h.compileInto(ctx, c, log, dir, metered, info)
		if !isStorageError(err) {
			return err
		}
		errs = append(errs, err)
		if dir == h.cache.dir { // a damaged, unwritable or full cache is not a reason to fail
			log.Warn("compile cache not written", "dir", dir, "err", err)
		}
	}
	return fmt.Errorf("compile: no folder for the compiled code (set pluginCacheDir): %w", errors.Join(errs...))
}

// compileInto compiles the module into a new folder in dir, loads it from there, and adds the folder to the cache.
func (h *Host) compileInto(ctx context.Context, c *code, log *slog.Logger, dir string, metered []byte, info *meter.Info) error {
	entry, err := h.cache.newEntry(dir)
	if err != nil {
		return err
	}
	defer entry.discard()
	if h.compiler != nil {
		err = h.compileInChild(ctx, entry.dir, metered)
	} else {
		err = compileHere(ctx, entry.dir, metered, h.limits.MemoryPages)
	}
	if err != nil {
		return err
	}
	if err := pack(entry.dir, metered, info); isStorageError(err) {
		return err
	} else if err != nil {
		return refusedByCompiler(err)
	}
	if err := h.load(ctx, c, &storedCode{dir: entry.dir, fresh: true}); err != nil {
		if isStorageError(err) || isMemoryError(err) {
			return err
		}
		return refusedByCompiler(err)
	}
	if dir != h.cache.dir {
		return nil
	}
	if err := h.cache.publish(entry, entryName(c.key.revision, &h.limits.Module)); err != nil {
		log.Warn("compile cache not written", "dir", dir, "err", err)
	}
	return nil
}

// compileInChild runs a child process, which takes a part of the memory of all plugins while it runs.
func (h *Host) compileInChild(ctx context.Context, dir string, metered []byte) error {
	done, err := h.compiler.wait(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := h.reserveForCompiler(); err != nil {
		return err
	}
	defer h.memory.release(h.limits.Compile.resident())
	return h.compiler.compile(ctx, dir, metered)
}

// compileHere compiles a module in this process.
func compileHere(ctx context.Context, dir string, metered []byte, memoryPages uint32) (err error) {
	// The module is valid as far as the meter checks. If the compiler panics all the same, refuse the module.
	defer func() {
		if r := recover(); r != nil {
			err = refusedByCompiler(fmt.Errorf("panic in the compiler: %v", r))
		}
	}()
	// wazero checks ctx between functions with two workers only, not with one.
	err = compileTo(experimental.WithCompilationWorkers(ctx, 2), dir, metered, memoryPages)
	if isStorageError(err) {
		return err
	}
	return refusedByCompiler(err)
}

// compileTo lets the engine compile a module into dir.
func compileTo(ctx context.Context, dir string, metered []byte, memoryPages uint32) error {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", errStorage, err)
	}
	r := newRuntime(ctx, cache, memoryPages)
	_, err = r.CompileModule(ctx, metered)
	return errors.Join(err, r.Close(context.Background()), cache.Close(context.Background()))
}

func refusedByCompiler(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("module refused: compile: %w", firstLine(err))
}

// isStorageError reports whether an error is one of files, not of the module.
func isStorageError(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) || errors.Is(err, errStorage)
}

func isMemoryError(err error) bool {
	var memory *MemoryError
	return errors.As(err, &memory)
}

// load sets c.info, c.runtime and c.compiled from an entry.
func (h *Host) load(ctx context.Context, c *code, stored *storedCode) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in the engine: %v", r)
		}
		if err != nil {
			err = errors.Join(err, c.close(&h.memory))
		}
	}()
	c.stored = stored
	outline, info, err := stored.module()
	if err != nil {
		return err
	}
	if err := checkABI(info); err != nil {
		return err
	}
	c.info = info
	if c.cache, err = cacheOf(stored); err != nil {
		return err
	}
	c.runtime = newRuntime(ctx, c.cache, c.key.memoryPages)
	if err := c.addImports(ctx); err != nil {
		return err
	}
	if c.compiled, err = c.runtime.CompileModule(ctx, outline); err != nil {
		return err
	}
	if err := stored.place(); err != nil {
		return err
	}
	return h.retryAfterCompile(ctx, func() error { return c.reserve(&h.memory, stored.size, int64(len(outline))) })
}

// retryAfterCompile calls f again if it has failed for want of memory, which a child process may have taken for a moment.
func (h *Host) retryAfterCompile(ctx context.Context, f func() error) error {
	err := f()
	if h.compiler == nil || !isMemoryError(err) {
		return err
	}
	done, waitErr := h.compiler.wait(ctx)
	if waitErr != nil {
		return err
	}
	defer done()
	return f()
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
