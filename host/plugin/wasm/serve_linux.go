package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
)

// server is a process of a plugin.
type server struct {
	local  *local
	budget budget

	mu        sync.Mutex
	instances map[uint32]*sandbox
}

// otherMemory is what a process maps and never touches, with what Go's runtime and the engine need, in bytes. See untouched.
const otherMemory = 160 << 20

// addresses is what instances may reserve for their memory, in bytes: a thousand of 64 MiB.
const addresses = 64 << 30

// ProcessMain is the main function of the process that Options.Process starts. It has a socket as standard input, whose end ends
// it, the memory of lanes as standard output, and the files of an entry as the descriptors from 3.
func ProcessMain(args []string, stderr io.Writer) int {
	s := &server{instances: map[uint32]*sandbox{}}
	hello, lanes, err := s.start(args)
	if err != nil {
		hello.Err = err.Error()
	}
	text, jsonErr := json.Marshal(hello)
	if _, writeErr := unix.Write(0, append(text, '\n')); err != nil || errors.Join(jsonErr, writeErr) != nil {
		fmt.Fprintln(stderr, errors.Join(err, jsonErr, writeErr))
		return exitRefused
	}
	for _, l := range lanes {
		go s.serve(l)
	}
	var end [1]byte
	for {
		if n, err := unix.Read(0, end[:]); n == 0 && err == nil || err != nil && err != unix.EINTR {
			return 0
		}
	}
}

// start loads the code and gives up all rights.
func (s *server) start(args []string) (h hello, lanes []*lane.Lane, err error) {
	var a processArguments
	if len(args) != 1 {
		return h, nil, errors.New("run a plugin: this command is run by sluice itself")
	}
	if err := json.Unmarshal([]byte(args[0]), &a); err != nil {
		return h, nil, err
	}
	runtime.GOMAXPROCS(lane.Count)
	debug.SetGCPercent(50)
	if lanes, err = lane.Map(os.NewFile(1, "memory")); err != nil {
		return h, nil, err
	}
	files := &entryFiles{key: a.Key, cacheDir: a.CacheDir}
	next := uintptr(3)
	for i, p := range files.parts() {
		if a.Given[i] {
			*p.file = os.NewFile(next, p.name)
			next++
		}
	}
	limits := Limits{MemoryPages: a.MemoryPages, LogLines: a.LogLines, LogBytes: a.LogBytes}
	s.local = &local{ctx: context.Background(), limits: limits, memory: &s.budget, files: files, log: slog.New(slog.DiscardHandler)}
	if err := s.local.load(s.local.ctx); err != nil {
		return h, nil, err
	}
	maps, err := mapping.OpenMaps()
	if err != nil {
		return h, nil, err
	}
	err = s.local.mapCode(maps)
	if maps.Close(); err != nil {
		return h, nil, err
	}
	h.Bytes = s.local.bytes()
	image := files.memory
	files.memory = nil // new instances map it
	files.close()
	files.memory = image
	debug.FreeOSMemory()
	mapped, _ := lane.Memory(os.Getpid())
	h.Layers, err = confine.Enter(&confine.Policy{Nice: niceness, Memory: uint64(a.Memory + otherMemory), Mapped: uint64(mapped + addresses), Calls: confine.Runtime(), Kill: true})
	return h, lanes, err
}

// serve answers the messages of a lane.
func (s *server) serve(l *lane.Lane) {
	runtime.LockOSThread()
	var watch lane.Stopwatch
	for {
		l.Receive()
		s.answer(l, &watch)
		l.Reply()
	}
}

// answer makes the calls of a message.
func (s *server) answer(l *lane.Lane, watch *lane.Stopwatch) {
	in, out := l.Request(), l.Answer()[:0]
	s.budget.setLimit(l.Number(numberBudget).Load())
	watch.Begin()
	failed := uint32(0) // an instance that can only be closed
	var c call
	for n := range min(l.Number(numberCalls).Load(), messageCalls) {
		instance, leave, rest, err := parseCall(in, &c)
		if err != nil {
			panic(err) // sluice does not send it
		}
		in = rest
		if c.skipped = n > 0 && (instance == failed || watch.Long()); !c.skipped {
			s.do(instance, leave, &c, watch)
		}
		if c.err != nil {
			failed = instance
		}
		out = appendResult(out, cap(out)-len(out), &c)
	}
	l.Number(numberAnswer).Store(int64(len(out)))
	l.Number(numberMemory).Store(s.budget.inUse())
}

// do makes a call.
func (s *server) do(id uint32, leave int64, c *call, watch *lane.Stopwatch) {
	if c.op == opForget {
		s.local.forget()
		return
	}
	s.mu.Lock()
	in := s.instances[id]
	s.mu.Unlock()
	switch {
	case c.op == opOpen && in == nil:
		opened, err := s.local.open(instanceOptions{leave: leave})
		if c.err = err; err != nil {
			return
		}
		in = opened.(*sandbox)
		s.mu.Lock()
		s.instances[id] = in
		s.mu.Unlock()
		c.size = in.linear.size
		return
	case in == nil:
		c.err = errors.New("no such instance")
		return
	case c.op == opDrop:
		s.mu.Lock()
		delete(s.instances, id)
		s.mu.Unlock()
		in.close()
		return
	}
	in.watch = watch
	in.do(c)
}
