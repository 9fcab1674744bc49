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

	"github.com/sluice-proxy/sluice/host/confine"
	"github.com/sluice-proxy/sluice/host/wasm/lane"
)

// server is a process of a plugin.
type server struct {
	local  *local
	budget budget

	mu        sync.Mutex
	instances map[uint32]*served
}

// served is an instance of a server.
type served struct {
	*sandbox
	calls    int
	overhead int64
}

// otherMemory is what a process maps and never touches, with what Go's runtime and the engine need, in bytes. See untouched.
const otherMemory = 160 << 20

// ProcessMain is the main function of the process that Options.Process starts. It has a socket as standard input, whose end ends it, the memory
// of lanes as standard output, and the files of an entry as the descriptors from 3.
func ProcessMain(args []string, stderr io.Writer) int {
	s := &server{instances: map[uint32]*served{}}
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
	files := &entryFiles{outline: os.NewFile(3, outlineName), info: os.NewFile(4, infoName), code: os.NewFile(5, codeName), frame: os.NewFile(6, framePrefix), key: a.Key}
	if a.Image {
		files.memory = os.NewFile(7, memoryName)
	}
	limits := Limits{MemoryPages: a.MemoryPages, LogLines: a.LogLines, LogBytes: a.LogBytes}
	s.local = &local{ctx: context.Background(), limits: limits, memory: &s.budget, stored: &storedCode{files: files}, log: slog.New(slog.DiscardHandler)}
	if err := s.local.load(s.local.ctx); err != nil {
		return h, nil, err
	}
	h.Key, h.Bytes = s.local.key(), s.local.bytes()
	image := files.memory
	files.memory = nil // new instances map it
	files.close()
	files.memory = image
	debug.FreeOSMemory()
	confine.Prepare()
	h.Layers, err = confine.Enter(&confine.Policy{Nice: niceness, Memory: uint64(a.Memory + otherMemory), Calls: confine.Runtime(), Kill: true})
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
	for range min(l.Number(numberCalls).Load(), messageCalls) {
		var c call
		instance, leave, rest, err := parseCall(in, &c)
		if err != nil {
			panic(err) // sluice does not send it
		}
		in = rest
		overhead := s.do(instance, leave, &c, watch)
		out = appendResult(out, cap(out)-len(out), &c, overhead)
	}
	l.Number(numberAnswer).Store(int64(len(out)))
	l.Number(numberMemory).Store(s.budget.inUse())
}

// do makes a call and returns the host memory of the instance besides its linear memory.
func (s *server) do(id uint32, leave int64, c *call, watch *lane.Stopwatch) int64 {
	if c.op == opForget {
		s.local.forget()
		return 0
	}
	s.mu.Lock()
	in := s.instances[id]
	s.mu.Unlock()
	switch {
	case c.op == opOpen && in == nil:
		opened, err := s.local.open(instanceOptions{leave: leave})
		if c.err = err; err != nil {
			return 0
		}
		in = &served{sandbox: opened.(*sandbox)}
		s.mu.Lock()
		s.instances[id] = in
		s.mu.Unlock()
		c.size = in.linear.size
		return 0
	case in == nil:
		c.err = errors.New("no such instance")
		return 0
	case c.op == opDrop:
		s.mu.Lock()
		delete(s.instances, id)
		s.mu.Unlock()
		in.close()
		return 0
	}
	in.watch = watch
	in.do(c)
	if in.calls++; c.op == opStart || in.calls%trimEvery == 0 {
		in.trim()
		f := in.footprint()
		in.overhead = int64(f.total() - f.memory)
	}
	return in.overhead
}
