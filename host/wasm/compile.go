package wasm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// compile sets c.runtime and c.compiled, from the cache if it has the code of the module. Otherwise the code is compiled
// into a folder, in a child process if there is a compiler, loaded from there, and the folder is added to the cache.
func (h *Host) compile(ctx context.Context, c *code, log *slog.Logger, metered []byte) error {
	entry, err := h.cache.open(digest(metered))
	if err == nil {
		err = h.loadCompiled(ctx, c, metered, entry.dir, cacheOnly)
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
	var errs []error
	for _, dir := range h.cache.folders(h.compiler != nil) {
		err := h.compileInto(ctx, c, log, metered, dir)
		if !isStorageError(err) {
			return err
		}
		errs = append(errs, err)
		if dir == h.cache.dir { // a damaged, unwritable or full cache is not a reason to fail
			log.Warn("compile cache not written", "dir", dir, "err", err)
		}
	}
	if h.compiler == nil {
		return refusedByCompiler(h.loadCompiled(ctx, c, metered, "", mayCompile))
	}
	return fmt.Errorf("compile: no folder for the compiled code (set pluginCacheDir): %w", errors.Join(errs...))
}

// compileInto compiles the module into a new folder in dir, loads it from there, and adds the folder to the cache.
func (h *Host) compileInto(ctx context.Context, c *code, log *slog.Logger, metered []byte, dir string) error {
	entry, err := h.cache.newEntry(dir)
	if err != nil {
		return err
	}
	defer entry.discard()
	mode := mayCompile
	if h.compiler != nil {
		if err := h.compileInChild(ctx, entry.dir, metered); err != nil {
			return err
		}
		mode = cacheOnly
	}
	if err := h.loadCompiled(ctx, c, metered, entry.dir, mode); err != nil {
		if isStorageError(err) || isMemoryError(err) {
			return err
		}
		return refusedByCompiler(err)
	}
	if dir != h.cache.dir {
		return nil
	}
	if err := h.cache.publish(entry, digest(metered)); err != nil {
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

type compileMode bool

const (
	cacheOnly  compileMode = false // fail if the folder does not contain the code
	mayCompile compileMode = true
)

// loadCompiled sets c.runtime and c.compiled from the code in dir.
func (h *Host) loadCompiled(ctx context.Context, c *code, metered []byte, dir string, mode compileMode) (err error) {
	// The module is valid as far as the meter checks. If the compiler panics all the same, refuse the module.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in the compiler: %v", r)
		}
		if err != nil {
			err = errors.Join(err, c.close(&h.memory))
		}
	}()
	c.runtime, c.cache, err = newRuntime(ctx, dir, c.key.memoryPages)
	if err != nil {
		return err
	}
	if err := c.addImports(ctx); err != nil {
		return err
	}
	compileCtx := ctx
	if mode == cacheOnly {
		// wazero compiles what its cache does not contain, unless ctx has ended.
		ended, cancel := context.WithCancel(ctx)
		cancel()
		compileCtx = ended
	}
	// wazero checks ctx between functions with two workers only, not with one.
	c.compiled, err = c.runtime.CompileModule(experimental.WithCompilationWorkers(compileCtx, 2), metered)
	if mode == cacheOnly && errors.Is(err, context.Canceled) {
		return errors.New("the code is missing")
	}
	if err != nil {
		return err
	}
	if c.freed, err = dropBodies(c.compiled); err != nil {
		h.log.Warn("memory of a module not freed", "err", err) // a test fails for such a version of wazero
	}
	return h.retryAfterCompile(ctx, func() error { return c.reserve(&h.memory, codeSize(dir, metered)) })
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

// codeSize returns the size of the compiled code in dir in bytes, or an estimate.
func codeSize(dir string, metered []byte) (n int64) {
	if dir == "" {
		return 3 * int64(len(metered))
	}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n
}

// newRuntime returns a runtime whose code is cached in dir; "": nowhere.
func newRuntime(ctx context.Context, dir string, memoryPages uint32) (wazero.Runtime, wazero.CompilationCache, error) {
	// Not WithCloseOnContextDone: it slows down calls and does not stop all guests. Fuel does.
	// The compiler in any case: without memory for code, NewRuntimeConfig chooses the interpreter.
	config := wazero.NewRuntimeConfigCompiler().
		WithCoreFeatures(api.CoreFeaturesV2).
		WithMemoryLimitPages(memoryPages).
		WithDebugInfoEnabled(false)
	if dir == "" {
		return wazero.NewRuntimeWithConfig(ctx, config), nil, nil
	}
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, nil, err
	}
	return wazero.NewRuntimeWithConfig(ctx, config.WithCompilationCache(cache)), cache, nil
}
