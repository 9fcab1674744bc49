// Package mapping maps files over memory that this process has already: the pages that nobody writes are then those of the
// kernel's page cache, which all processes share and the kernel can drop.
package mapping

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fill makes the first size bytes of a file the content of memory. Pages are copied when they are written.
func Fill(memory []byte, f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if size > int64(len(memory)) {
		return fmt.Errorf("%s has %d bytes, the memory %d", f.Name(), size, len(memory))
	}
	return over(memory[:size], f, unix.PROT_READ|unix.PROT_WRITE)
}

func over(memory []byte, f *os.File, protection int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	control := conn.Control(func(fd uintptr) { // the file may be closed meanwhile
		_, err = unix.MmapPtr(int(fd), 0, unsafe.Pointer(&memory[0]), uintptr(len(memory)), protection, unix.MAP_PRIVATE|unix.MAP_FIXED)
	})
	return errors.Join(control, err)
}

// NewFile returns an empty file that is memory. Others with it can make it smaller and larger, unless it is sealed.
func NewFile(name string) (*os.File, error) {
	const notExecutable = 8 // MFD_NOEXEC_SEAL: without it, a kernel with vm.memfd_noexec=2 refuses
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|notExecutable)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Maps lists the memory of this process. A process that must open no file opens it before.
type Maps struct{ f *os.File }

// OpenMaps returns the list.
func OpenMaps() (*Maps, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	return &Maps{f}, nil
}

// Close closes the list.
func (m *Maps) Close() { _ = m.f.Close() }

// maxMaps is far more than a process has that runs one module, in bytes.
const maxMaps = 1 << 20

// code returns the executable memory that belongs to no file.
func (m *Maps) code() (regions [][]byte, err error) {
	list := m.f
	if f, err := os.Open(m.f.Name()); err == nil { // QEMU's has what it had when it was opened
		defer f.Close()
		list = f
	}
	text := make([]byte, 0, 16<<10)
	for len(text) < maxMaps {
		text = append(text, make([]byte, 4096)...)
		n, err := list.ReadAt(text[len(text)-4096:], int64(len(text)-4096))
		text = text[:len(text)-4096+n]
		if err != nil || n == 0 {
			break
		}
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // 7f0000000000-7f0000001000 r-xp 00000000 00:00 0 [name]
		if len(f) < 5 || f[1] != "r-xp" || f[4] != "0" || len(f) > 5 && !strings.HasPrefix(f[5], "[anon") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		at := uintptr(start)
		regions = append(regions, unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), end-start)) // not memory of Go's
	}
	return regions, nil
}

// find is what is compared first.
const find = 64

// Split moves the machine code in a file, and what follows it, to other files: what of the file is also executable memory of this
// process, in whole pages, because the rest of a page would be zeros when the file is mapped. If there is none, it makes no file.
func (m *Maps) Split(file, code, rest string) error {
	regions, err := m.code()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	content, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer unix.Munmap(content)
	begin, end := 0, 0
	for _, region := range regions {
		if from, to := within(content, region); to-from > end-begin {
			begin, end = from, to
		}
	}
	if begin == end {
		return nil
	}
	if err := os.WriteFile(code, content[begin:end], 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(rest, content[end:], 0o600); err != nil {
		return err
	}
	return f.Truncate(int64(begin))
}

// within returns where content has the longest sequence of pages of a region that is around its middle, most of which is code.
// Others may unmap parts of the region meanwhile, as the kernel lists neighboring memory as one.
func within(content, region []byte) (from, to int) {
	for len(region) > 0 {
		begin, end, read := readable(content, region)
		if end-begin > to-from {
			from, to = begin, end
		}
		region = region[read:]
	}
	return from, to
}

// readable is within for a region up to its first page that cannot be read, and returns how much of the region it is, with that
// page.
func readable(content, region []byte) (from, to, read int) {
	page, middle := os.Getpagesize(), len(content)/2
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r)
		}
		from, to, read = 0, 0, len(region) // a fault elsewhere
		if at := fault.Addr() - uintptr(unsafe.Pointer(&region[0])); at < uintptr(len(region)) {
			read = min(int(at)&^(page-1)+page, len(region))
		}
	}()
	sample := content[middle:][:min(4*find, len(content)/4)]
	for at, n := 0, 0; n < maxFound; n++ {
		i := bytes.Index(region[at:], sample)
		if i < 0 {
			break
		}
		at += i
		before := 0
		for before < min(at, middle) && region[at-before-1] == content[middle-before-1] {
			before++
		}
		after := 0
		for at+after < len(region) && middle+after < len(content) && region[at+after] == content[middle+after] {
			after++
		}
		begin := (at - before + page - 1) &^ (page - 1) // what is before code may be equal by chance
		if n := (at + after - begin) &^ (page - 1); n > to-from {
			from, to = middle-at+begin, middle-at+begin+n
		}
		at++
	}
	return from, to, len(region)
}

// maxFound bounds how often code that repeats itself is looked at.
const maxFound = 16

// Replace finds the code that a file contains in the executable memory of this process, maps the file there, and returns where.
// The code must not run, and nobody may unmap other code meanwhile. nil: the code is not there, or the file cannot be executed,
// as in a file system that is mounted with noexec.
func (m *Maps) Replace(f *os.File) ([]byte, error) {
	regions, err := m.code()
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := int(st.Size()) &^ (os.Getpagesize() - 1)
	if size == 0 {
		return nil, nil
	}
	content, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	defer unix.Munmap(content)
	for _, region := range regions {
		for at := 0; at+size <= len(region); at += os.Getpagesize() {
			if there := region[at : at+size]; bytes.Equal(there[:find], content[:find]) && bytes.Equal(there, content) {
				return there, over(there, f, unix.PROT_READ|unix.PROT_EXEC)
			}
		}
	}
	return nil, nil
}

// Forget drops the resident pages of mapped code: those that are executed again come back from the page cache.
func Forget(code []byte) {
	if code != nil {
		_ = unix.Madvise(code, unix.MADV_DONTNEED) // only saves memory
	}
}
