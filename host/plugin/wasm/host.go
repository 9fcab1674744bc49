package wasm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// Options of a Host. The zero value is usable.
type Options struct {
	// CacheDir is the compile cache. It contains native code that is executed, so it must belong to this user with
	// mode 0700. It is created if it does not exist. If it is empty or not private, nothing is cached.
	CacheDir string
	// Precompiled has code that is used instead of that in the cache.
	Precompiled Precompiled
	// Compiler is the command line of a child process that compiles modules under CompileLimits: this program again, which
	// must then call CompileMain with the arguments that follow those given. nil compiles in this process, where only
	// Limits.Module bounds what it costs; that is for tests and for modules that are trusted.
	Compiler []string
	// Process is the command line of the processes in which plugins run without rights: this program again, which must then call
	// ProcessMain with the arguments that follow those given. nil runs them in this process.
	Process []string
	// Memory bounds the host memory of all plugins together, in bytes: compiled code, tables, linear memories and, while a
	// Compiler runs, Limits.Compile.Memory. 0 means DefaultMemory.
	Memory int64
	// Missing are the inputs that this host cannot provide, by Input.Name, with the reason. Plugins that need one are refused.
	Missing map[string]string
	Limits  Limits       // zero fields default to DefaultLimits
	Log     *slog.Logger // log lines of guests and of the host; nil: discarded
	// Now is used for the durations in Report only; with nil they are zero.
	Now func() time.Time
}

// Host loads plugins. It is safe for concurrent use.
type Host struct {
	ctx   context.Context // of all guest calls; without deadline: fuel ends them
	cache compileCache

	precompiled Precompiled

	compiler *compiler // nil: compile in this process
	process  []string  // nil: run in this process
	limits   Limits
	memory   budget
	log      *slog.Logger
	now      func() time.Time
	seed     maphash.Seed // of the choice of decisions that are repeated

	missing atomic.Pointer[map[string]string] // see SetMissing

	mu      sync.Mutex
	plugins map[*Plugin]bool
	codes   map[codeKey]*code // in use
	closed  bool
}

// New returns a Host, or an error that names an invalid limit. A cache folder that is not private is logged and not used.
// The context does not apply to guests: Close ends them.
func New(_ context.Context, opts Options) (*Host, error) {
	limits, err := opts.Limits.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("wasm: %w", err)
	}
	h := &Host{ctx: context.Background(), limits: limits, log: opts.Log, now: opts.Now, plugins: map[*Plugin]bool{}, codes: map[codeKey]*code{},
		seed:        maphash.MakeSeed(),
		precompiled: opts.Precompiled, process: opts.Process}
	h.SetMissing(opts.Missing)
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.now == nil {
		h.now = func() time.Time { return time.Time{} }
	}
	if opts.CacheDir != "" {
		if err := checkCacheDir(opts.CacheDir); err != nil {
			h.log.Warn("compile cache disabled", "dir", opts.CacheDir, "err", err)
		} else {
			h.cache.dir = opts.CacheDir
		}
	}
	h.memory.limit = cmp.Or(opts.Memory, DefaultMemory)
	if opts.Compiler != nil {
		h.compiler = newCompiler(opts.Compiler, limits.Compile, limits.MemoryPages)
	}
	return h, nil
}

// Close closes all loaded plugins that are not closed yet.
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

// register adds p to the plugins that Close closes, and reports whether h is still open.
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

// Report describes a loaded plugin and the cost of loading it.
type Report struct {
	Name        string
	Revision    string
	Module      meter.Info
	ABI         uint32   // major<<16 | minor, from sluice_abi_version
	Role        abi.Role // from Manifest
	Counters    []string // from Manifest
	Manifest    manifest.Manifest
	Needs       uint32        // with the settings of Load
	Keys        []string      // declared for them
	FromCache   bool          // the compiled code was cached or …
	Precompiled bool          // … precompiled
	Meter       time.Duration // durations are zero without Options.Now
	Compile     time.Duration
	Instantiate time.Duration // including _initialize
	InitFuel    int64         // used by them
	MemoryBytes uint64        // host memory of a new instance
	SelfTest    SelfTest      // of Load
	// Confinement are the layers of the process that runs the plugin, nil if it runs in this one.
	Confinement []confine.Layer
}

// Load loads a module and checks it with settings, a JSON object or nothing. The error is written for the author of the module;
// the caller adds the name of the plugin.
func (h *Host) Load(ctx context.Context, name string, wasm, settings []byte) (*Plugin, error) {
	return h.LoadWith(ctx, name, wasm, settings, LoadOptions{})
}

// LoadWith is Load with options.
func (h *Host) LoadWith(ctx context.Context, name string, wasm, settings []byte, options LoadOptions) (*Plugin, error) {
	p, err := h.Open(ctx, name, wasm, options)
	if err != nil {
		return nil, err
	}
	if p.report.SelfTest, err = p.Check(ctx, string(settings)); err == nil {
		err = p.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.report.Needs, p.report.Keys = p.Needs(string(settings)), p.Keys(string(settings))
	return p, nil
}

// Open loads a module. A large one takes seconds of CPU time, bounded by Limits; ctx cancels compilation. Before
// the first Decide, Check it with the settings that it is used with, and Start it.
func (h *Host) Open(ctx context.Context, name string, wasm []byte, options LoadOptions) (*Plugin, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	options.Instances = max(2, cmp.Or(options.Instances, DefaultInstances))
	limits := h.limits
	if options.MemoryPages > 0 {
		limits.MemoryPages = min(limits.MemoryPages, options.MemoryPages)
	}
	log := h.log.With("plugin", name)
	key := codeKey{revision(wasm), limits.MemoryPages}
	said, unsaid := manifest.Read(wasm)
	c, err := h.acquire(ctx, log, wasm, key)
	if err != nil {
		return nil, err
	}
	p := &Plugin{
		host: h, ctx: h.ctx, code: c, engine: c.engine, limits: limits, options: options, log: log, configurable: hasExport(c.info, "sluice_configure"),
		verdicts: verdicts{}, trials: trials{unit: limits.ConfigureFuel}, pool: pool{limit: options.Instances},
		report: Report{Name: name, Revision: key.revision, Module: *c.info, FromCache: c.fromCache, Precompiled: c.precompiled, Meter: c.metering, Compile: c.compiling},
	}
	if e, ok := c.engine.(interface{ layers() []confine.Layer }); ok {
		p.report.Confinement = e.layers()
		warnOfMissingLayers(log, p.report.Confinement)
	}
	err = h.retryAfterCompile(ctx, func() error {
		p.discard()
		return p.handshake(h.now, said, unsaid)
	})
	p.discard()
	p.repeats, p.instances, p.initFuel = p.newRepeats(), 0, 0
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if !h.register(p) {
		return nil, errors.Join(errors.New("the plugin host is closed"), p.Close())
	}
	return p, nil
}

// warnOfMissingLayers logs what a plugin's process has kept.
func warnOfMissingLayers(log *slog.Logger, layers []confine.Layer) {
	for _, l := range layers {
		if l.Err != "" {
			log.Warn("the process of a plugin is not confined as it should be", "missing", l.Name, "err", l.Err)
		}
	}
}

// checkABI checks imports and exports against the ABI, before compilation.
func checkABI(info *meter.Info) error {
	if hasExport(info, "_start") && !hasExport(info, "_initialize") {
		return errCommand
	}
	if err := CheckImports(info); err != nil {
		return err
	}
	return CheckExports(info)
}

// CheckImports checks the imports of a module against the ABI.
func CheckImports(info *meter.Info) error {
	for _, im := range info.Imports {
		if err := checkImport(im); err != nil {
			return err
		}
	}
	return nil
}

// CheckExports checks the exports of a module against the ABI.
func CheckExports(info *meter.Info) error {
	if hasExport(info, "_start") && !hasExport(info, "_initialize") {
		return errCommand
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
			return fmt.Errorf("module refused: not a sluice plugin: it does not export %s %q: %s", kindName(want.kind), want.name, exportAdvice(info))
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
		{"sluice_needs", meter.KindFunc, "(i32) -> (i32)", true},
		{"sluice_configure", meter.KindFunc, "(i32 i32) -> (i32)", true},
		{"sluice_keys", meter.KindFunc, "(i32 i32 i32) -> (i32)", true},
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

// revision returns a digest of module and the ABI of the host.
func revision(wasm []byte) string {
	s := sha256.New()
	var head [16]byte
	binary.LittleEndian.PutUint32(head[:], abi.Major<<16|abi.Minor)
	binary.LittleEndian.PutUint64(head[8:], uint64(len(wasm)))
	s.Write(head[:])
	s.Write(wasm)
	return hex.EncodeToString(s.Sum(nil))
}
