package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Options of a Host. The zero value is fit for use.
type Options struct {
	// CacheDir keeps compiled modules between runs. It holds native code that is run, so it must belong to this
	// user and be open to nobody else (0700); it is made if it does not exist. Empty, or not fit: no cache.
	CacheDir string
	Limits   Limits       // zero fields have the values of DefaultLimits
	Log      *slog.Logger // what guests log, and what becomes of them; nil: nowhere
	// Now is for the durations in Report only; nil leaves them zero. Decisions never depend on it.
	Now func() time.Time
}

// Host loads plugins. It is safe for use by several goroutines.
type Host struct {
	ctx      context.Context // of all calls of guests: a plain one, as they end by fuel and not by a deadline
	cacheDir string
	limits   Limits
	log      *slog.Logger
	now      func() time.Time

	mu      sync.Mutex
	plugins map[*Plugin]bool
	closed  bool
}

// New makes a Host, or says which limit makes no sense. A cache folder that cannot be trusted is logged and not used.
// Neither the values nor the end of the context reach guests: Close is the end.
func New(_ context.Context, opts Options) (*Host, error) {
	limits, err := opts.Limits.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("wasm: %w", err)
	}
	h := &Host{ctx: context.Background(), limits: limits, log: opts.Log, now: opts.Now, plugins: map[*Plugin]bool{}}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.now == nil {
		h.now = func() time.Time { return time.Time{} }
	}
	if opts.CacheDir != "" {
		if err := checkCacheDir(opts.CacheDir); err != nil {
			h.log.Warn("compile cache is not used", "dir", opts.CacheDir, "error", err)
		} else {
			h.cacheDir = opts.CacheDir
		}
	}
	return h, nil
}

// Close closes all plugins that were loaded and are not closed yet.
func (h *Host) Close(context.Context) error {
	h.mu.Lock()
	h.closed = true
	open := h.plugins
	h.plugins = nil
	h.mu.Unlock()
	var errs []error
	for p := range open {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// register notes that p has to be closed with h.
func (h *Host) register(p *Plugin) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.plugins[p] = true
	return true
}

func (h *Host) unregister(p *Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.plugins, p)
}

// Report says what loading a plugin found and took.
type Report struct {
	Name        string
	Revision    string
	Module      meter.Info
	ABI         uint32 // major<<16 | minor, as the guest says
	Needs       uint32
	FromCache   bool          // compiled code came from the cache
	Meter       time.Duration // durations are zero without Options.Now
	Compile     time.Duration
	Instantiate time.Duration // with _initialize and sluice_configure
	InitFuel    int64         // what they used
	MemoryBytes uint32        // of a fresh instance
}

// Load makes a plugin of a module and its settings (JSON text, or nothing), and tries it on Samples. It may take
// seconds of CPU time for a large module, and never more than Limits allow; ctx can end it between functions. The error
// says what is wrong with the module, for the person who wrote it; the caller adds which plugin it is.
func (h *Host) Load(ctx context.Context, name string, wasm, settings []byte) (*Plugin, error) {
	return h.LoadWithMemoryLimit(ctx, name, wasm, settings, 0)
}

// LoadWithMemoryLimit is Load with a tighter limit on the guest's memory, in pages of 64 KiB; 0 is the Host's own.
func (h *Host) LoadWithMemoryLimit(ctx context.Context, name string, wasm, settings []byte, memoryPages uint32) (*Plugin, error) {
	limits := h.limits
	if memoryPages > 0 {
		limits.MemoryPages = min(limits.MemoryPages, memoryPages)
	}
	if len(settings) > limits.Settings {
		return nil, fmt.Errorf("settings: %d bytes, the limit is %d", len(settings), limits.Settings)
	}
	if len(settings) > 0 && !json.Valid(settings) {
		return nil, errors.New("settings: not JSON")
	}
	begin := h.now()
	metered, info, err := meter.Rewrite(wasm, limits.Module)
	if err != nil {
		return nil, err
	}
	if err := checkABI(info); err != nil {
		return nil, err
	}
	p := &Plugin{
		host: h, limits: limits, settings: append([]byte(nil), settings...),
		log: h.log.With("plugin", name), configurable: hasExport(info, "sluice_configure"),
	}
	p.report = Report{Name: name, Revision: revision(wasm, settings), Module: *info, Meter: h.now().Sub(begin)}
	begin = h.now()
	if err := h.compile(ctx, p, metered); err != nil {
		return nil, err
	}
	p.report.Compile = h.now().Sub(begin)
	if err := p.handshake(ctx, h.now); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if !h.register(p) {
		return nil, errors.Join(errors.New("the plugin host is closed"), p.Close())
	}
	return p, nil
}

// compile fills in p.runtime and p.compiled, from the cache when that is possible and sound.
func (h *Host) compile(ctx context.Context, p *Plugin, metered []byte) error {
	entry := openEntry(h.cacheDir, metered, p.log)
	err := h.compileWith(ctx, p, metered, entry)
	if err != nil && entry != nil && ctx.Err() == nil {
		// Damaged, unwritable or full: the cache is never a reason to fail.
		entry.remove()
		if err2 := h.compileWith(ctx, p, metered, nil); err2 == nil {
			p.log.Warn("compile cache failed, compiled without it", "dir", h.cacheDir, "error", err)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("module refused: compile: %w", firstLine(err))
	}
	p.report.FromCache = entry != nil && entry.verified
	if entry != nil && !entry.verified {
		if err := entry.writeManifest(); err != nil {
			p.log.Warn("compile cache is not written", "dir", h.cacheDir, "error", err)
			entry.remove()
		}
	}
	return nil
}

func (h *Host) compileWith(ctx context.Context, p *Plugin, metered []byte, entry *cacheEntry) (err error) {
	// The module was checked before; should the compiler panic all the same, it is the module that is refused.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the compiler failed: %v", r)
		}
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	// Not WithCloseOnContextDone: it slows calls down and does not stop all guests. Fuel does.
	config := wazero.NewRuntimeConfig().
		WithCoreFeatures(api.CoreFeaturesV2).
		WithMemoryLimitPages(p.limits.MemoryPages).
		WithDebugInfoEnabled(false)
	p.closed = false
	p.cache = nil
	if entry != nil {
		cache, err := wazero.NewCompilationCacheWithDir(entry.dir)
		if err != nil {
			return err
		}
		p.cache = cache
		config = config.WithCompilationCache(cache)
	}
	p.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	if err := p.addImports(ctx); err != nil {
		return err
	}
	// With two workers wazero looks at ctx between functions, with one it does not.
	p.compiled, err = p.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, 2), metered)
	return err
}

// checkABI checks what the ABI asks of imports and exports, before anything is compiled.
func checkABI(info *meter.Info) error {
	for _, im := range info.Imports {
		if err := checkImport(im); err != nil {
			return err
		}
	}
	for _, want := range abiExports() {
		found := false
		for _, e := range info.Exports {
			if e.Name != want.name {
				continue
			}
			found = true
			switch {
			case e.Kind != want.kind:
				return fmt.Errorf("module refused: export %q is not a %s", want.name, kindName(want.kind))
			case want.kind == meter.KindFunc && e.Type.String() != want.sig:
				return fmt.Errorf("module refused: export %q has type %s, want %s", want.name, e.Type, want.sig)
			}
		}
		if !found && !want.optional {
			return fmt.Errorf("module refused: it does not export %s %q: it is no sluice plugin", kindName(want.kind), want.name)
		}
	}
	return nil
}

type abiExport struct {
	name     string
	kind     byte
	sig      string
	optional bool
}

func abiExports() []abiExport {
	return []abiExport{
		{"memory", meter.KindMemory, "", false},
		{"sluice_abi_version", meter.KindFunc, "() -> (i32)", false},
		{"sluice_alloc", meter.KindFunc, "(i32) -> (i32)", false},
		{"sluice_decide", meter.KindFunc, "(i32 i32 i32 i32) -> (i64)", false},
		{"sluice_needs", meter.KindFunc, "() -> (i32)", true},
		{"sluice_configure", meter.KindFunc, "(i32 i32) -> (i32)", true},
		{"_initialize", meter.KindFunc, "() -> ()", true},
	}
}

func kindName(kind byte) string {
	if kind == meter.KindMemory {
		return "memory"
	}
	return "function"
}

func hasExport(info *meter.Info, name string) bool {
	for _, e := range info.Exports {
		if e.Name == name {
			return true
		}
	}
	return false
}

// revision identifies module, settings and the host's ABI.
func revision(wasm, settings []byte) string {
	s := sha256.New()
	var head [16]byte
	binary.LittleEndian.PutUint32(head[:], abi.Major<<16|abi.Minor)
	binary.LittleEndian.PutUint64(head[8:], uint64(len(wasm)))
	s.Write(head[:])
	s.Write(wasm)
	s.Write(settings)
	return hex.EncodeToString(s.Sum(nil))
}
