package wasm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/turns"
)

// compile sets c.info and c.engine, from precompiled code or the cache if they have the code of the module. Otherwise the module
// is metered and compiled into a folder, in a child process if there is a compiler, loaded from there, and the folder is added to
// the cache.
func (h *Host) compile(ctx context.Context, c *code, log *slog.Logger, wasm []byte) error {
	if err := CheckExecutable(); err != nil {
		return err
	}
	name := entryName(c.key.revision, &h.limits.Module)
	entry, err := h.precompiled.open(name)
	if err == nil {
		if err = h.load(ctx, c, entry.dir); err == nil || isResourceError(err) {
			c.fromCache, c.precompiled = true, true
			return err
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		log.Warn("precompiled code not used", "dir", h.precompiled.Dir, "err", err)
	}
	entry, err = h.cache.open(name)
	if err == nil {
		err = h.load(ctx, c, entry.dir)
		entry.close()
		if err == nil {
			c.fromCache = true
			return nil
		}
		if isResourceError(err) {
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
	if err := writeOutline(entry.dir, metered, info); err != nil {
		return err
	}
	if h.compiler != nil {
		err = h.compileInChild(ctx, entry.dir, metered)
	} else {
		err = compileHere(ctx, entry.dir, metered, h.limits.MemoryPages)
	}
	if err != nil {
		return err
	}
	if err := pack(entry.dir); isStorageError(err) {
		return err
	} else if err != nil {
		return refusedByCompiler(err)
	}
	if err := h.load(ctx, c, entry.dir); err != nil {
		if isStorageError(err) || isResourceError(err) {
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

// compileInChild runs a child process, and another one whenever the turn was lost.
func (h *Host) compileInChild(ctx context.Context, dir string, metered []byte) error {
	left := h.compiler.limits.timeout()
	for lost := 0; ; lost++ {
		t, err := h.compiler.turns.Take(ctx, lost)
		if err != nil {
			return err
		}
		work, err := newWork(dir)
		if err == nil {
			err = h.compileInTurn(ctx, t, left, work, metered)
		}
		if left -= h.compiler.turns.Give(t); !errors.Is(err, turns.ErrLost) {
			return err
		}
		h.compiler.turns.Yield(ctx, t)
	}
}

// compileInTurn runs a child process, which takes a part of the memory of all plugins while it runs.
func (h *Host) compileInTurn(ctx context.Context, t *turns.Turn, timeout time.Duration, dir string, metered []byte) error {
	if err := h.reserveForCompiler(ctx); err != nil {
		return err
	}
	defer h.memory.release(h.limits.Compile.resident())
	return h.compiler.compile(ctx, t, timeout, dir, metered)
}

// compileHere compiles a module in this process.
func compileHere(ctx context.Context, dir string, metered []byte, memoryPages uint32) (err error) {
	// The module is valid as far as the meter checks. If the compiler panics all the same, refuse the module.
	defer func() {
		if r := recover(); r != nil {
			err = refusedByCompiler(fmt.Errorf("panic in the compiler: %v", r))
		}
	}()
	maps, err := mapping.OpenMaps()
	if err != nil {
		return err
	}
	defer maps.Close()
	work, err := newWork(dir)
	if err != nil {
		return err
	}
	// wazero checks ctx between functions with two workers only, not with one.
	err = compileTo(experimental.WithCompilationWorkers(ctx, 2), work, metered, memoryPages, maps)
	if isStorageError(err) {
		return err
	}
	return refusedByCompiler(err)
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
	var link *os.LinkError
	return errors.As(err, &path) || errors.As(err, &link) || errors.Is(err, errStorage)
}

func isMemoryError(err error) bool {
	var memory *MemoryError
	return errors.As(err, &memory)
}

// isResourceError reports whether an error is one of what the node has at the moment, not of the module or its code.
func isResourceError(err error) bool {
	return isMemoryError(err) || errors.Is(err, errProcess) || errors.Is(err, context.Canceled)
}

// load sets c.info and c.engine from an entry.
func (h *Host) load(ctx context.Context, c *code, dir string) error {
	files, err := openEntry(dir, h.cache.dir)
	if err != nil {
		return err
	}
	limits := h.limits
	limits.MemoryPages = c.key.memoryPages
	if h.process != nil {
		c.info, c.engine, err = h.startProcess(ctx, files, limits)
	} else {
		l := &local{ctx: h.ctx, limits: limits, memory: &h.memory, files: files, log: h.log}
		err = l.load(ctx)
		c.info, c.engine = l.info, l
	}
	if err != nil {
		c.engine = nil
		return err
	}
	n := c.engine.bytes()
	if err := h.retryAfterCompile(ctx, func() error { return h.memory.reserve("compiled code", n) }); err != nil {
		return errors.Join(err, c.close(&h.memory))
	}
	c.reserved = n
	return nil
}

// retryAfterCompile calls f again if it has failed for want of memory, which a child process may have taken for a moment. No
// other child begins before f returns, unless it takes longer than a turn.
func (h *Host) retryAfterCompile(ctx context.Context, f func() error) error {
	err := f()
	if h.compiler == nil || !isMemoryError(err) {
		return err
	}
	t, waitErr := h.compiler.turns.Take(ctx, 0)
	if waitErr != nil {
		return err
	}
	return h.compiler.turns.Do(t, f)
}
