package wasm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
)

// An entry of the cache contains what is needed to run a module, and nothing of its functions but their machine code:
//
//   - the outline of the rewritten module (meter.Outline), which is decoded quickly: without function bodies there is little to validate
//   - the memory that a new instance begins with, which is mapped too: instances share the pages that they do not write
//   - what the meter has found out about the module
//   - the machine code, alone in a file, so that it can be mapped
//   - the frame: what the engine writes before and after the code. Its name has the engine's key, which depends on the processor
//
// Machine code of a Go module has 8 MB, of which calls execute a small part. Mapped from the file, only that part is resident, and the
// kernel can drop it.
const (
	outlineName  = "outline.wasm"
	memoryName   = "memory" // missing if the outline has data segments
	infoName     = "info.json"
	codeName     = "code"
	framePrefix  = "frame"
	maxInfo      = 4 << 20  // bytes
	maxFrame     = 16 << 20 // bytes
	engineHeader = "WAZEVO"
)

// pack replaces the engine's file in a folder by the files of an entry.
func pack(dir string, metered []byte, info *meter.Info) error {
	outline, err := meter.NewOutline(metered)
	if err != nil {
		return err
	}
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
	if err == nil && len(files) != 1 {
		err = errors.New("the code is missing")
	}
	if err != nil {
		return err
	}
	frame, err := splitCode(files[0], filepath.Join(dir, codeName))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{outlineName: outline.Module, memoryName: outline.Memory, infoName: text, framePrefix: frame} {
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Dir(files[0]))
}

// splitCode copies the machine code of an engine's file to another file, and returns what is before and after it.
func splitCode(from, to string) (frame []byte, err error) {
	in, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	head, size, err := readHead(in)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = io.CopyN(out, in, size)
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	tail, err := io.ReadAll(io.LimitReader(in, maxFrame-int64(len(head))+1))
	if err == nil && len(head)+len(tail) > maxFrame {
		err = fmt.Errorf("the engine's file has more than %d bytes beside the code", maxFrame)
	}
	return append(head, tail...), err
}

// readHead reads what is before the machine code in an engine's file or frame, and the size of the code, which it ends with: the header,
// the length of the version and the version, the number of functions and an offset for each.
func readHead(r io.Reader) (head []byte, size int64, err error) {
	take := func(n int) []byte {
		if err == nil && len(head)+n > maxFrame {
			err = fmt.Errorf("compiled code: more than %d bytes before the code", maxFrame)
		}
		if err != nil {
			return make([]byte, 8)
		}
		head = append(head, make([]byte, n)...)
		if _, err = io.ReadFull(r, head[len(head)-n:]); err != nil {
			err = fmt.Errorf("compiled code: the engine's header is incomplete: %w", err)
		}
		return head[len(head)-n:]
	}
	if magic := take(len(engineHeader)); err == nil && string(magic) != engineHeader {
		return nil, 0, errors.New("compiled code: not in the format of this engine")
	}
	take(int(take(1)[0]))
	functions := binary.LittleEndian.Uint32(take(4))
	take(8 * int(min(functions, maxFrame)))
	n := binary.LittleEndian.Uint64(take(8))
	if err == nil && n > maxCode {
		err = fmt.Errorf("compiled code: %d bytes, the limit is %d", n, maxCode)
	}
	return head, int64(n), err
}

// entryFiles are the open files of an entry.
type entryFiles struct {
	outline, info, code, frame *os.File
	memory                     *os.File // nil: the outline has data segments
	key                        string   // that the frame is for; "": it has no key in its name yet
}

// openEntry opens the files of an entry, which may be deleted then.
func openEntry(dir string) (*entryFiles, error) {
	frames, err := filepath.Glob(filepath.Join(dir, framePrefix+"*"))
	if err != nil || len(frames) != 1 {
		return nil, errors.Join(fmt.Errorf("compiled code: %d frames", len(frames)), err)
	}
	e := &entryFiles{key: strings.TrimPrefix(strings.TrimPrefix(filepath.Base(frames[0]), framePrefix), "-")}
	for _, f := range []struct {
		to   **os.File
		name string
	}{{&e.outline, outlineName}, {&e.info, infoName}, {&e.code, codeName}, {&e.frame, filepath.Base(frames[0])}, {&e.memory, memoryName}} {
		if *f.to, err = openRegular(filepath.Join(dir, f.name)); err == nil || f.name == memoryName && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		e.close()
		return nil, err
	}
	return e, nil
}

// close closes the files. They may be closed already.
func (e *entryFiles) close() {
	for _, f := range []*os.File{e.outline, e.info, e.code, e.frame, e.memory} {
		if f != nil {
			_ = f.Close()
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

// fill makes the image the content of a new memory, whose pages are copied when they are written.
func (i *image) fill(memory []byte) error {
	if i == nil || i.size == 0 {
		return nil
	}
	if i.size > int64(len(memory)) {
		return fmt.Errorf("the image has %d bytes, the memory %d", i.size, len(memory))
	}
	conn, err := i.file.SyscallConn()
	if err != nil {
		return err
	}
	control := conn.Control(func(fd uintptr) { // the file may be closed meanwhile
		_, err = unix.MmapPtr(int(fd), 0, unsafe.Pointer(&memory[0]), uintptr(i.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED)
	})
	return errors.Join(control, err)
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

// storedCode is the code of one module in the folder of an entry. It is the engine's file cache: the engine reads from it what it has written,
// but zeros instead of the code and the checksum of zeros, and place replaces the zeros. So the code need not be read, and its pages
// become resident when they are executed. The checksum is not missed: the manifest has a digest.
type storedCode struct {
	files  *entryFiles
	key    string // of the engine
	size   int64  // of the code, in bytes
	mapped bool   // place maps the code; otherwise the engine reads it, as where files cannot be executed
	memory *image // nil: the outline has data segments

	mu     sync.Mutex // a self-test may still run when the code is closed
	target []byte     // where the engine expects the code, once it has read it
}

// cacheOf returns a cache of the engine that consists of stored. The engine has no function for that, so its field is set: with
// another layout than expected, this is an error.
func cacheOf(stored *storedCode) (cache wazero.CompilationCache, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("compile cache: another layout than expected of wazero: %v", r)
		}
	}()
	cache = wazero.NewCompilationCache()
	field := reflect.ValueOf(cache).Elem().FieldByName("fileCache")
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(stored))
	return cache, nil
}

// Get implements the engine's file cache.
func (s *storedCode) Get(key [32]byte) (content io.ReadCloser, ok bool, err error) {
	s.key = hex.EncodeToString(key[:])
	if s.files.key != "" && s.files.key != s.key {
		return nil, false, errors.New("the code is for another processor or version of the engine")
	}
	frame, err := readFile(s.files.frame, maxFrame)
	if err != nil {
		return nil, false, err
	}
	head, size, err := readHead(bytes.NewReader(frame))
	if err != nil {
		return nil, false, err
	}
	s.size = size
	tail := frame[len(head):]
	if len(tail) < 4 {
		return nil, false, errors.New("compiled code: no checksum")
	}
	if s.mapped, err = s.executable(); err != nil {
		return nil, false, err
	}
	if s.mapped {
		binary.LittleEndian.PutUint32(tail, checksumOfZeros(size))
	}
	return &codeReader{stored: s, head: bytes.NewReader(head), tail: bytes.NewReader(tail)}, true, nil
}

// Add implements the engine's file cache: nothing is compiled with it.
func (s *storedCode) Add([32]byte, io.Reader) error { return errors.New("the code is missing") }

// Delete implements the engine's file cache, for code of another version of the engine.
func (s *storedCode) Delete([32]byte) error {
	return errors.New("the code is for another version of the engine")
}

// executable reports whether the file of the code can be executed.
func (s *storedCode) executable() (bool, error) {
	st, err := s.files.code.Stat()
	if err == nil && st.Size() != s.size {
		err = fmt.Errorf("compiled code: the file has %d bytes, want %d", st.Size(), s.size)
	}
	if err != nil || s.size == 0 {
		return false, err
	}
	at, err := unix.MmapPtr(int(s.files.code.Fd()), 0, nil, uintptr(s.size), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	switch {
	case err == nil:
		return true, unix.MunmapPtr(at, uintptr(s.size))
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV):
		return false, nil
	}
	return false, err
}

// place maps the code where the engine expects it, in place of zeros. From there, the engine unmaps it. Moving an earlier mapping there (mremap) is
// not an option: Linux 6.12 in User-Mode Linux goes on to execute the zeros.
func (s *storedCode) place() error {
	if !s.mapped {
		return nil
	}
	if s.target == nil {
		return errors.New("compiled code: the engine has not read it")
	}
	_, err := unix.MmapPtr(int(s.files.code.Fd()), 0, unsafe.Pointer(&s.target[0]), uintptr(s.size), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED)
	return err
}

// forget drops the resident pages of mapped code, such as those that were executed to start an instance. They are in the kernel's page cache,
// from where those that are executed again come back.
func (s *storedCode) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.target != nil {
		_ = unix.Madvise(s.target, unix.MADV_DONTNEED) // only saves memory
	}
}

// close forgets where the code was, which the engine unmaps.
func (s *storedCode) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = nil
}

// codeReader reads as the engine's file does: head, code, checksum, tail.
type codeReader struct {
	stored     *storedCode
	head, tail *bytes.Reader // the checksum belongs to the tail
	done       bool          // the code has been read
}

// Read implements io.Reader. The engine reads the code with one call, into new memory.
func (r *codeReader) Read(p []byte) (int, error) {
	switch s := r.stored; {
	case r.head.Len() > 0:
		return r.head.Read(p)
	case r.done || s.size == 0:
		return r.tail.Read(p)
	case int64(len(p)) != s.size:
		return 0, fmt.Errorf("compiled code: the engine reads %d bytes of %d", len(p), s.size)
	}
	r.done = true
	if !r.stored.mapped {
		return io.ReadFull(io.NewSectionReader(r.stored.files.code, 0, r.stored.size), p)
	}
	r.stored.target = p
	return len(p), nil
}

// Close implements io.Closer.
func (r *codeReader) Close() error { return nil }

// checksumOfZeros returns the checksum that the engine computes for n zeros.
func checksumOfZeros(n int64) uint32 {
	var zeros [64 << 10]byte
	table, sum := crc32.MakeTable(crc32.Castagnoli), uint32(0)
	for ; n > 0; n -= int64(len(zeros)) {
		sum = crc32.Update(sum, table, zeros[:min(n, int64(len(zeros)))])
	}
	return sum
}
