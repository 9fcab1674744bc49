package wasm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// process is the engine in a process without rights, one for each module: what a module that breaks out can reach are the
// requests to itself. When the process ends, its instances fail, and the next one starts another from the same files.
type process struct {
	host   *Host
	files  *entryFiles
	limits Limits
	info   *meter.Info
	hello  hello        // of the first run: the later ones are the same
	cpu    atomic.Int64 // of runs that have ended

	mu      sync.Mutex
	current *run
	closed  bool
}

// run is one process from its start to its end.
type run struct {
	p       *process
	cmd     *exec.Cmd
	control *os.File
	memory  *os.File // of the lanes
	stderr  *headBuffer
	lanes   []*lane.Lane
	free    [lane.Count]chan struct{} // a value: nobody uses the lane
	hello   hello
	err     error         // of its end
	ended   chan struct{} // closed at its end
	killed  atomic.Pointer[callError]
	last    atomic.Uint32 // id of an instance
	open    atomic.Int64  // instances
	size    atomic.Int64  // bytes reserved for them
}

// hello is what a process says when it has given up its rights.
type hello struct {
	Err    string          `json:"err,omitempty"`
	Bytes  int64           `json:"bytes"`
	Layers []confine.Layer `json:"layers"`
}

// processArguments is the only argument of a process, as JSON.
type processArguments struct {
	Key         string
	CacheDir    string
	Given       []bool // which of entryFiles.parts there are
	MemoryPages uint32
	LogLines    int
	LogBytes    int
	Memory      int64
}

const (
	maxHello = 64 << 10
	// startTime is how long a process may take to load the code and give up its rights. It has a low priority.
	startTime = 30 * time.Second
	// killAfter is the CPU time of a process, in addition to that of the call, after which it is killed. Fuel ends a call long
	// before.
	killAfter = 100 * time.Millisecond
	// silence is how long a process may not answer, whatever its CPU time: it may wait for ever.
	silence = 5 * time.Second
	// look is how often a process is looked at while it runs calls.
	look = 5 * time.Millisecond
	// trimAbove is the length of a message above which its pages are returned.
	trimAbove = 256 << 10
)

// startProcess returns the engine for the files of an entry in a process of its own.
func (h *Host) startProcess(ctx context.Context, files *entryFiles, limits Limits) (*meter.Info, engine, error) {
	info, err := files.description()
	if err != nil {
		files.close()
		return nil, nil, err
	}
	p := &process{host: h, files: files, limits: limits, info: info}
	r, err := p.start(ctx)
	if err != nil {
		files.close()
		return nil, nil, err
	}
	p.current, p.hello = r, r.hello
	return info, p, nil
}

// start starts a process and waits until it is ready.
func (p *process) start(ctx context.Context) (*run, error) {
	memory, err := lane.Create()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("plugin process: %w", err), memory.Close())
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer theirs.Close()
	_ = unix.SetNonblock(pair[0], true)
	r := &run{p: p, control: os.NewFile(uintptr(pair[0]), "control"), memory: memory, stderr: &headBuffer{limit: 4 << 10}, ended: make(chan struct{})}
	if r.lanes, err = lane.Map(memory); err != nil {
		return nil, errors.Join(err, r.control.Close(), memory.Close())
	}
	for n := range r.free {
		r.free[n] = make(chan struct{}, 1)
		r.free[n] <- struct{}{}
	}
	a := processArguments{Key: p.files.key, CacheDir: p.files.cacheDir, MemoryPages: p.limits.MemoryPages, LogLines: p.limits.LogLines, LogBytes: p.limits.LogBytes, Memory: p.host.memory.limit}
	var given []*os.File
	for _, part := range p.files.parts() {
		if a.Given = append(a.Given, *part.file != nil); *part.file != nil {
			given = append(given, *part.file)
		}
	}
	args, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	r.cmd = exec.Command("/proc/self/exe")
	r.cmd.Args = append(append([]string{}, p.host.process...), string(args))
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = theirs, memory, r.stderr
	r.cmd.ExtraFiles = given
	started := make(chan error, 1)
	go func() {
		err := confine.Run(r.cmd, func(err error) { started <- err })
		r.end(err)
	}()
	if err := <-started; err != nil {
		<-r.ended
		return nil, fmt.Errorf("%w: start: %w", errProcess, err)
	}
	ready, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	stop := context.AfterFunc(ready, func() { r.kill(nil) })
	defer stop()
	line, err := bufio.NewReader(io.LimitReader(r.control, maxHello)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r.hello)
	}
	switch {
	case err != nil:
		r.kill(nil)
		<-r.ended
		err = errors.Join(r.why("plugin process"), ctx.Err())
	case r.hello.Err != "":
		err = fmt.Errorf("plugin process: %s", meter.Printable(r.hello.Err, 2*maxErrorText))
	case r.hello.Bytes < 0 || r.hello.Bytes > maxCodeSize:
		err = errMessage
	default:
		go lane.Watch(r.cmd.Process.Pid, r.lanes, r.ended, r.lookAtMemory, func(used time.Duration) {
			r.kill(&callError{cause: errProcess, text: fmt.Sprintf("%s: killed after %d ms of CPU time without a call", errProcess, used.Milliseconds())})
		})
		return r, nil
	}
	r.kill(nil)
	return nil, err
}

// kill ends the process; cause is the error of calls that run, nil: why the kernel says that it has ended. It reports whether it
// is the first.
func (r *run) kill(cause *callError) bool {
	first := r.killed.CompareAndSwap(nil, cause)
	_ = r.cmd.Process.Kill()
	return first
}

// end is called when the process has ended.
func (r *run) end(err error) {
	r.err = err
	if r.cmd.ProcessState != nil {
		r.p.cpu.Add(int64(r.cmd.ProcessState.UserTime() + r.cmd.ProcessState.SystemTime()))
	}
	close(r.ended)
	_ = r.control.Close()
	for _, free := range r.free { // calls notice the end with their next look
		<-free
	}
	lane.Unmap(r.lanes)
	_ = r.memory.Close()
	r.p.host.memory.release(r.size.Swap(0))
}

// ownMemory is what a process may have in addition to its code and instances, in bytes: Go's runtime, the call stacks of two deep
// recursions, each with its copy while it grows, and garbage.
const ownMemory = 64 << 20

// maxShared is what may be left of the memory of lanes between messages, in bytes: twice trimAbove, in huge pages.
const maxShared = 8 << 20

// lookAtMemory kills a process that has more memory than is counted, of its own or of the lanes: the kernel's limit is for what
// Go's runtime maps. It reports whether the process makes no call meanwhile.
func (r *run) lookAtMemory() bool {
	idle, counted := true, r.allowance() // instances grow in calls
	for n := range r.free {
		select {
		case <-r.free[n]:
			defer func() { r.free[n] <- struct{}{} }()
		default:
			idle = false
		}
	}
	_, own := lane.Memory(r.cmd.Process.Pid)
	shared := int64(0)
	if idle {
		counted, shared = r.size.Load(), lane.Resident(r.memory)
	}
	switch {
	case r.dead():
	case own > counted+r.hello.Bytes+ownMemory:
		r.kill(&callError{cause: errProcess, text: fmt.Sprintf("%s: killed with %d MiB of memory, of which %d MiB are counted", errProcess, own>>20, counted>>20)})
	case shared > maxShared:
		r.kill(&callError{cause: errProcess, text: fmt.Sprintf("%s: killed with %d MiB of shared memory", errProcess, shared>>20)})
	}
	return idle
}

func (r *run) dead() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// why returns the error of calls of a process that has ended.
func (r *run) why(what string) *callError {
	if e := r.killed.Load(); e != nil {
		return &callError{cause: e.cause, text: what + ": " + e.text}
	}
	stderr := r.stderr.String()
	text := fmt.Sprint(r.err)
	status, _ := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case outOfMemory(stderr):
		text = "more memory than pluginLimits.memoryMiB allows"
	case status.Signaled() && status.Signal() == syscall.SIGSYS:
		text = "it has made a system call that no plugin needs; the kernel's audit log has its number"
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		text = "it was killed, perhaps because the node has no memory left"
	default:
		if line, _, _ := strings.Cut(stderr, "\n"); line != "" {
			text += ": " + meter.Quote(line)
		}
	}
	return &callError{cause: errProcess, text: what + ": " + errProcess.Error() + ": " + text}
}

// running returns the current process, or starts another one.
func (p *process) running() (*run, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, ErrClosed
	case p.current != nil && !p.current.dead():
		return p.current, nil
	}
	r, err := p.start(p.host.ctx)
	if err == nil {
		p.current = r
	}
	return r, err
}

// open implements engine.
func (p *process) open(o instanceOptions) (instance, error) {
	r, err := p.running()
	if err != nil {
		return nil, fmt.Errorf("instantiate: %w", err)
	}
	in := &remote{run: r, id: r.last.Add(1), leave: o.leave}
	r.open.Add(1)
	c := call{op: opOpen, limit: p.limits.InitTime}
	if in.do(&c); c.err != nil {
		r.open.Add(-1)
		return nil, c.err
	}
	return in, nil
}

// forget implements engine.
func (p *process) forget() {
	p.mu.Lock()
	r := p.current
	p.mu.Unlock()
	if r != nil && !r.dead() {
		(&remote{run: r}).do(&call{op: opForget})
	}
}

// bytes implements engine.
func (p *process) bytes() int64 { return p.hello.Bytes }

// layers returns the layers of confinement.
func (p *process) layers() []confine.Layer { return p.hello.Layers }

// cpuTime returns the CPU time of all its processes.
func (p *process) cpuTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := time.Duration(p.cpu.Load())
	if r := p.current; r != nil && !r.dead() {
		used += lane.CPU(r.cmd.Process.Pid)
	}
	return used
}

// close implements engine. It does not wait for the process, whose priority is low.
func (p *process) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.current != nil {
		p.current.kill(&callError{cause: ErrClosed, text: ErrClosed.Error()})
	}
	p.files.close()
	return nil
}

// remote is an instance in a process.
type remote struct {
	run    *run
	id     uint32
	leave  int64
	size   int64  // of its linear memory
	answer []byte // to the last call
	guilty bool   // the process was killed because of its call
	one    [1]*call
}

// alive implements instance.
func (i *remote) alive() bool { return !i.run.dead() }

// hostBytes implements instance.
func (i *remote) hostBytes() int64 { return i.size + overheadBytes(i.run.p.info) }

// close implements instance.
func (i *remote) close() {
	if i.alive() {
		i.run.open.Add(-1)
		i.do(&call{op: opDrop})
	}
}

// do implements instance.
func (i *remote) do(c *call) {
	if c.err = fits(c); c.err != nil {
		return
	}
	i.one[0] = c
	if !i.doAll(i.one[:], &i.answer) && c.err == nil {
		why := i.run.why(opName(c.op))
		why.unclear = !i.guilty
		c.err = why
	}
}

// doAll implements messages. The requests and the room for their answers fit into a lane, and the limits are equal.
func (i *remote) doAll(calls []*call, answer *[]byte) bool {
	r := i.run
	n, ok := r.take()
	if !ok {
		return false
	}
	defer func() { r.free[n] <- struct{}{} }()
	if r.dead() {
		return false
	}
	w := r.lanes[n]
	message, most := w.Request()[:0], int64(0)
	for _, c := range calls {
		message = appendCall(message, i.id, i.leave, c)
		most += int64(c.room) + otherAnswer
	}
	w.Number(numberCalls).Store(int64(len(calls)))
	w.Number(numberBudget).Store(r.allowance())
	if !i.await(w, calls[0].limit) {
		return false
	}
	length := w.Number(numberAnswer).Load()
	if length < 0 || length > min(most, lane.Answer) {
		length = 0
	}
	*answer = append((*answer)[:0], w.Answer()[:length]...) // a copy: the process may write at any time
	r.account(w.Number(numberMemory).Load())
	if int64(len(message))+length > trimAbove {
		w.Trim()
	}
	rest := *answer
	for n, c := range calls {
		var err error
		if rest, err = parseResult(rest, c); err == nil && n == 0 && c.skipped {
			err = errMessage
		}
		if err != nil {
			r.kill(&callError{cause: errProcess, text: err.Error()})
			calls[0].err = fmt.Errorf("%s: %w", opName(c.op), err)
			return false
		}
		if c.err != nil {
			var memory *MemoryError
			if errors.As(c.err, &memory) {
				memory.Others, memory.Limit = r.p.host.memory.inUse(), r.p.host.memory.limit
				r.p.host.compiler.lacksMemory()
			}
		}
		if !c.skipped {
			i.size = c.size
		}
	}
	return true
}

// take waits for a lane that nobody uses, and returns its number. The first one comes first: the thread behind it has the memory
// of calls in its cache, and Go's scheduler does not look after a second one that wakes and sleeps all the time.
func (r *run) take() (n int, ok bool) {
	select {
	case <-r.free[0]:
		return 0, true
	default:
	}
	select {
	case <-r.free[0]:
		return 0, true
	case <-r.free[1]:
		return 1, true
	case <-r.ended:
		return 0, false
	}
}

// await sends a message and waits for the answer. It kills a process that takes longer for it than fuel lets any guest take for
// one call: a process begins no more calls of a message after lane.MessageTime. What a process says of its progress is not asked:
// it could lie.
func (i *remote) await(w *lane.Lane, limit time.Duration) bool {
	r := i.run
	pid := r.cmd.Process.Pid
	limit += killAfter
	w.Send()
	begin, waited := time.Duration(-1), time.Duration(0)
	for {
		answered, longer := w.Await(look)
		if answered || r.dead() {
			return !r.dead()
		}
		waited += longer
		used := lane.CPU(pid)
		if begin < 0 {
			begin = used
		}
		switch used -= begin; {
		case waited >= limit && used >= limit:
			i.guilty = r.kill(&callError{cause: errLate, text: fmt.Sprintf("%s: killed after %d ms of CPU time", errLate, used.Milliseconds())})
		case waited >= limit+silence:
			i.guilty = r.kill(&callError{cause: errLate, text: fmt.Sprintf("%s: killed after %s without an answer", errLate, waited.Round(10*time.Millisecond))})
		}
	}
}

// allowance returns the memory that the instances of the process may have.
func (r *run) allowance() int64 {
	m := &r.p.host.memory
	return max(0, r.size.Load()+m.limit-m.inUse())
}

// account records the memory that the instances of the process have, as far as they can have it.
func (r *run) account(bytes int64) {
	m := &r.p.host.memory
	bytes = min(max(bytes, 0), m.limit, r.open.Load()*int64(r.p.limits.MemoryPages)<<16)
	m.release(r.size.Swap(bytes) - bytes)
}

// opName returns the name of an operation in errors.
func opName(o op) string {
	switch o {
	case opOpen, opStart:
		return "instantiate"
	case opVersion:
		return "sluice_abi_version"
	case opConfigure:
		return "sluice_configure"
	case opDecide, opRaw:
		return "sluice_decide"
	case opAlloc:
		return "sluice_alloc"
	}
	return "memory of the guest"
}
