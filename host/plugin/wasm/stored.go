package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// An entry of the cache contains what is needed to run a module, and nothing of its functions but their machine code:
//
//   - the outline of the rewritten module (meter.Outline), which is decoded quickly: without function bodies there is little to
//     validate
//   - the memory that a new instance begins with, which is mapped too: instances share the pages that they do not write
//   - what the meter has found out about the module
//   - what the engine has written to its cache for the whole module, in three files: what comes before the pages of machine code,
//     these, and what comes after them. The name of the first has the engine's key for the outline, so the engine takes the code
//     of the whole module for that of the outline. Both are compiled for that; the key depends on the processor. Machine code of
//     a Go module has 8 MB, of which calls execute a small part: mapped from a file of its own, only that part is resident, and
//     the kernel can drop it
const (
	outlineName  = "outline.wasm"
	memoryName   = "memory" // missing if the outline has data segments
	infoName     = "info.json"
	codeName     = "code" // missing, with the rest, if it was not found
	restName     = "rest"
	enginePrefix = "engine-"
	maxInfo      = 4 << 20 // bytes

	// What the compiler writes is in a folder of its own, so that it cannot change the rest of the entry, in folders that are
	// there when it begins.
	workFolder    = "work"
	wholeFolder   = "whole"
	outlineFolder = "outline"
)

// writeOutline writes what the compiler does not into a folder: the outline, the memory, and what the meter has found out.
func writeOutline(dir string, metered []byte, info *meter.Info) error {
	outline, err := meter.NewOutline(metered)
	if err != nil {
		return refusedByCompiler(err)
	}
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{outlineName: outline.Module, memoryName: outline.Memory, infoName: text} {
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// newWork makes the folder for the compiler, with the outline.
func newWork(dir string) (work string, err error) {
	work = filepath.Join(dir, workFolder)
	outline, err := os.ReadFile(filepath.Join(dir, outlineName))
	if err == nil {
		err = errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o700))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(work, outlineName), outline, 0o600)
	}
	for _, name := range []string{wholeFolder, outlineFolder} { // the engine makes folders in them
		if err == nil {
			_, err = wazero.NewCompilationCacheWithDir(filepath.Join(work, name))
		}
	}
	return work, err
}

// workLimit is more than the compiler writes: a file of the largest size, and its parts. workFiles is more than it has.
const (
	workLimit = 2*maxCode + 16<<20
	workFiles = 32
)

// checkWork returns an error if the compiler writes more than it needs.
func checkWork(work string) error {
	files, bytes := 0, int64(0)
	_ = filepath.WalkDir(work, func(_ string, d fs.DirEntry, err error) error {
		if files++; files > workFiles {
			return fs.SkipAll
		}
		if err == nil {
			if info, err := d.Info(); err == nil { // it may be gone already
				bytes += info.Size()
			}
		}
		return nil
	})
	if files > workFiles || bytes > workLimit {
		return fmt.Errorf("module refused: compile: more than the limit of %d files and %d MiB for the code", workFiles, workLimit>>20)
	}
	return nil
}

// compileTo lets the engine compile a module and its outline in the folder of newWork.
func compileTo(ctx context.Context, dir string, metered []byte, memoryPages uint32, maps *mapping.Maps) error {
	outline, err := os.ReadFile(filepath.Join(dir, outlineName))
	if err != nil {
		return err
	}
	if err := compileOne(ctx, filepath.Join(dir, outlineFolder), outline, memoryPages, nil); err != nil {
		return err
	}
	return compileOne(ctx, filepath.Join(dir, wholeFolder), metered, memoryPages, func(file string) error {
		return maps.Split(file, filepath.Join(dir, codeName), filepath.Join(dir, restName))
	})
}

func compileOne(ctx context.Context, dir string, module []byte, memoryPages uint32, then func(file string) error) (err error) {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", errStorage, err)
	}
	r := newRuntime(ctx, cache, memoryPages)
	defer func() {
		err = errors.Join(err, r.Close(context.Background()), cache.Close(context.Background()))
	}()
	if _, err := r.CompileModule(ctx, module); err != nil || then == nil {
		return err
	}
	file, err := fileOf(dir)
	if err != nil {
		return err
	}
	return then(file)
}

// fileOf returns the only file that the engine has written into a folder, whose name is its key.
func fileOf(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
	if err == nil && len(files) != 1 {
		err = errors.New("the code is missing")
	}
	if err != nil {
		return "", err
	}
	return files[0], nil
}

// pack makes of what compileTo has written the files of an entry.
func pack(dir string) error {
	work := filepath.Join(dir, workFolder)
	whole, err := fileOf(filepath.Join(work, wholeFolder))
	if err != nil {
		return err
	}
	outline, err := fileOf(filepath.Join(work, outlineFolder))
	if err != nil {
		return err
	}
	if err := os.Rename(whole, filepath.Join(dir, enginePrefix+filepath.Base(outline))); err != nil {
		return err
	}
	for _, name := range []string{codeName, restName} {
		if err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(work)
}

// entryFiles are the open files of an entry.
type entryFiles struct {
	outline, info, engine *os.File
	memory                *os.File // nil: the outline has data segments
	code, rest            *os.File // nil: they are part of engine
	key                   string   // of the engine
	cacheDir              string   // the first choice for a temporary folder; may be ""
}

// openEntry opens the files of an entry, which may be deleted then.
func openEntry(dir, cacheDir string) (*entryFiles, error) {
	files, err := filepath.Glob(filepath.Join(dir, enginePrefix+"*"))
	if err != nil || len(files) != 1 {
		return nil, errors.Join(fmt.Errorf("compiled code: %d files of the engine", len(files)), err)
	}
	e := &entryFiles{key: strings.TrimPrefix(filepath.Base(files[0]), enginePrefix), cacheDir: cacheDir}
	for _, p := range e.parts() {
		if *p.file, err = openRegular(filepath.Join(dir, p.name)); err == nil || p.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		e.close()
		return nil, err
	}
	if (e.code == nil) != (e.rest == nil) {
		e.close()
		return nil, errors.New("compiled code: a part is missing")
	}
	return e, nil
}

// part is a file of an entry. One that is optional is nil if there is none.
type part struct {
	file     **os.File
	name     string
	optional bool
}

// parts returns the files, in the order of the descriptors of a process.
func (e *entryFiles) parts() []part {
	return []part{{&e.outline, outlineName, false}, {&e.info, infoName, false}, {&e.engine, enginePrefix + e.key, false},
		{&e.memory, memoryName, true}, {&e.code, codeName, true}, {&e.rest, restName, true}}
}

// close closes the files. They may be closed already.
func (e *entryFiles) close() {
	for _, p := range e.parts() {
		if *p.file != nil {
			_ = (*p.file).Close()
		}
	}
}

// description returns what the meter has found out about the module.
func (e *entryFiles) description() (info *meter.Info, err error) {
	text, err := readFile(e.info, maxInfo)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &info); err != nil || info == nil {
		return nil, fmt.Errorf("%s: %w", infoName, errors.Join(err, errors.New("not a description of a module")))
	}
	return info, checkABI(info)
}

var errProcessor = errors.New("compiled code: it is for another processor or version of the engine")

// whole returns what the engine has written, as a file in memory, and its size.
func (e *entryFiles) whole() (f *os.File, size int64, err error) {
	if f, err = mapping.NewFile(enginePrefix + e.key); err != nil {
		return nil, 0, fmt.Errorf("compiled code: %w", err)
	}
	buffer := make([]byte, 256<<10)
	for _, part := range []*os.File{e.engine, e.code, e.rest} {
		if part == nil {
			continue
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{f}, io.NewSectionReader(part, 0, maxCode), buffer) // not from where the last process has read to
		if size += n; err != nil {
			return nil, 0, errors.Join(fmt.Errorf("compiled code: %w", err), f.Close())
		}
	}
	return f, size, nil
}

// compiled compiles the outline with a cache in which the engine finds the code of the whole module: a temporary folder with a
// link to an open file. The engine compiles what it does not find. size is that of the code.
func (e *entryFiles) compiled(compile func(wazero.CompilationCache) error) (cache wazero.CompilationCache, size int64, err error) {
	engine, size, err := e.whole()
	if err != nil {
		return nil, 0, err
	}
	defer engine.Close()
	entry, err := compileCache{dir: e.cacheDir}.temporary()
	if err != nil {
		return nil, 0, err
	}
	defer entry.discard()
	dir := entry.dir
	if cache, err = wazero.NewCompilationCacheWithDir(dir); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errStorage, err)
	}
	folders, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(folders) != 1 {
		return cache, 0, errors.Join(fmt.Errorf("compiled code: the engine has %d folders", len(folders)), err)
	}
	if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", engine.Fd()), filepath.Join(folders[0], e.key)); err != nil {
		return cache, 0, err
	}
	if err := compile(cache); err != nil {
		return cache, 0, err
	}
	left, err := os.ReadDir(folders[0])
	if err == nil && (len(left) != 1 || left[0].Type() != fs.ModeSymlink) {
		err = errProcessor
	}
	return cache, size, err
}

// image is a file with the memory that an instance begins with.
type image struct {
	file *os.File
	size int64
}

func newImage(f *os.File) (*image, error) {
	if f == nil {
		return nil, nil
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &image{f, st.Size()}, nil
}

// fill makes the image the content of a new memory.
func (i *image) fill(memory []byte) error {
	if i == nil {
		return nil
	}
	return mapping.Fill(memory, i.file, i.size)
}

func openRegular(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// readFile reads a file of at most limit bytes, whatever has been read of it before.
func readFile(f *os.File, limit int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes, the limit is %d", filepath.Base(f.Name()), st.Size(), limit)
	}
	b := make([]byte, st.Size())
	_, err = io.ReadFull(io.NewSectionReader(f, 0, st.Size()), b)
	return b, err
}
