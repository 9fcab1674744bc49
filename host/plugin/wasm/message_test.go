package wasm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// misbehave is the process of a plugin whose lanes are served by what begin returns for each: it answers the message that has
// come, and replies.
func misbehave(args []string, begin func(s *server, i int) func(*lane.Lane, *lane.Stopwatch)) int {
	s := &server{instances: map[uint32]*sandbox{}}
	hello, lanes, err := s.start(args)
	text, jsonErr := json.Marshal(hello)
	if _, writeErr := unix.Write(0, append(text, '\n')); errors.Join(err, jsonErr, writeErr) != nil {
		return 1
	}
	for i, l := range lanes {
		go func() {
			runtime.LockOSThread()
			answer := begin(s, i)
			var watch lane.Stopwatch
			for {
				l.Receive()
				answer(l, &watch)
			}
		}()
	}
	_, _ = unix.Read(0, make([]byte, 1))
	return 0
}

// liar is a process that an attacker has taken over: of the answers of the module, every other one is changed, a little or much,
// before sluice reads it or while it does.
func liar(args []string) int {
	return misbehave(args, func(s *server, i int) func(*lane.Lane, *lane.Stopwatch) {
		random := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(i)))
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			kind := op(binary.LittleEndian.Uint32(l.Request()))
			lies, late := random.IntN(2) == 0 && (kind == opDecide || kind == opConfigure || random.IntN(8) == 0), random.IntN(2) == 0
			if lies && !late {
				tamper(random, l)
			}
			l.Reply()
			if lies && late { // after sluice has begun to read
				tamper(random, l)
			}
		}
	})
}

// tamper changes an answer.
func tamper(random *rand.Rand, l *lane.Lane) {
	out, length := l.Answer(), max(1, min(l.Number(numberAnswer).Load(), lane.Answer))
	for range 1 + random.IntN(3) {
		switch at := random.IntN(int(length)); random.IntN(4) {
		case 0:
			out[at] = byte(random.Uint32())
		case 1: // a number of the head
			binary.LittleEndian.PutUint32(out[random.IntN(resultHead)&^3:], random.Uint32())
		case 2:
			binary.LittleEndian.PutUint32(out[random.IntN(resultHead)&^3:], uint32(random.IntN(100)))
		case 3:
			out[at] ^= 1 << random.IntN(8)
		}
	}
	if random.IntN(8) == 0 {
		l.Number(numberAnswer).Store(int64(random.Uint64()))
	}
	if random.IntN(2) == 0 {
		l.Number(numberMemory).Store(int64(random.Uint64()))
	}
}

// TestProcessThatLiesIsBelievedNothing: no answer makes sluice fail, use memory without bound, or accept more than a decision may
// contain.
func TestProcessThatLiesIsBelievedNothing(t *testing.T) {
	requireChildren(t)
	var log bytes.Buffer
	module := goodWAT(t)
	dir := filepath.Join(t.TempDir(), "cache")
	h := newHost(t, Options{CacheDir: dir, Process: childCommand("liar"), Log: slog.New(slog.NewTextHandler(&log, nil)), Limits: Limits{Failures: 1 << 20}})
	var p *Plugin
	for range 100 {
		var err error
		if p, err = h.Open(t.Context(), "liar", module, LoadOptions{}); err == nil {
			break
		}
	}
	if p == nil {
		t.Fatal("no process started")
	}
	good, failed := 0, 0
	for i := range 300 {
		req := SampleRequest(1 + i%7)
		req.Now = sampleNow + int64(i)*400_000
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		if err := p.Decide(req, &resp); err != nil {
			failed++
			if len(err.Error()) > 8<<10 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			continue
		}
		good++
		if len(resp.Results) != len(req.Endpoints) || len(resp.State) > abi.MaxStateLen {
			t.Fatalf("%d results for %d endpoints, %d bytes of state", len(resp.Results), len(req.Endpoints), len(resp.State))
		}
		if used, limit := h.MemoryInUse(); used < 0 || used > 2*limit {
			t.Fatalf("memory %d of %d", used, limit)
		}
	}
	if s := p.Stats(); s.Fuel > uint64(good+failed)*uint64(DefaultLimits().ConfigureFuel+DefaultLimits().DecideFuel*2+DefaultLimits().InitFuel) {
		t.Errorf("fuel %d", s.Fuel)
	}
	if failed == 0 || good == 0 {
		t.Errorf("%d answers accepted, %d refused", good, failed)
	}
	t.Logf("%d valid answers, %d failures, %d bytes of log", good, failed, log.Len())
}

// FuzzResult parses what a process may have written as an answer to each operation.
func FuzzResult(f *testing.F) {
	for o := range lastOp {
		c := call{op: o, room: 100, fuel: 1000, used: 10, size: 65536, lines: []line{{abi.LogError, "text"}}, loggedError: "text"}
		switch o {
		case opDecide, opRead:
			c.out, c.value = make([]byte, 100), 100
		case opConfigure:
			c.out, c.stage = []byte("podLabel:app"), stageDone
		}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c))
		c.err = &callError{cause: errNoFuel, text: "sluice_decide: out of fuel"}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c))
		c.err = &MemoryError{What: "memory of the guest", Bytes: 1 << 20}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c))
	}
	f.Fuzz(func(t *testing.T, o uint32, answer []byte) {
		c := call{op: op(o), room: 100, fuel: 1000}
		rest, err := parseResult(bytes.Clone(answer), &c)
		if err != nil {
			return
		}
		logged := 0
		for _, l := range c.lines {
			logged += len(l.text)
		}
		switch {
		case len(rest) > len(answer)-resultHead || len(rest) > 0 && (len(answer)-len(rest))%8 != 0:
			t.Errorf("%d bytes left of %d", len(rest), len(answer))
		case c.used < 0 || c.used > c.fuel:
			t.Errorf("fuel %d of %d", c.used, c.fuel)
		case c.size < 0:
			t.Errorf("size %d", c.size)
		case len(c.lines) > maxLines || logged > 3*len(answer) || len(c.loggedError) > 3*maxLineText:
			t.Errorf("%d lines, %d bytes", len(c.lines), logged)
		case c.err == nil && len(c.out) > max(c.room, abi.MaxKeysLen):
			t.Errorf("output of %d bytes", len(c.out))
		case c.op == opDecide && c.err == nil && c.value >= 0 && c.value <= int64(c.room) && int(c.value) != len(c.out):
			t.Errorf("value %d, output %d", c.value, len(c.out))
		case c.err != nil && len(c.err.Error()) > 16*maxErrorText:
			t.Errorf("error of %d bytes", len(c.err.Error()))
		}
	})
}

// TestCallsArriveAsTheyAre: what sluice writes is what the process reads, and back.
func TestCallsArriveAsTheyAre(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var message []byte
	var sent []call
	for i := range messageCalls {
		c := call{op: op(random.IntN(int(lastOp))), handle: random.Uint32(), given: i%2 == 0, room: random.IntN(1000), fuel: random.Int64(), limit: time.Duration(random.Int64()),
			addresses: [4]uint32{random.Uint32(), random.Uint32(), random.Uint32(), random.Uint32()}, input: make([]byte, random.IntN(50))}
		for k := range c.input {
			c.input[k] = byte(random.Uint32())
		}
		sent = append(sent, c)
		message = appendCall(message, uint32(i), int64(i)*7, &c)
	}
	var answer []byte
	for i := range sent {
		var c call
		instance, leave, rest, err := parseCall(message, &c)
		if err != nil || instance != uint32(i) || leave != int64(i)*7 || fmt.Sprint(c) != fmt.Sprint(sent[i]) {
			t.Fatalf("call %d: instance %d, leave %d, %v\n%v\n%v", i, instance, leave, err, c, sent[i])
		}
		message = rest
		c.used, c.needs, c.stage, c.refused, c.size, c.dropped, c.loggedError = 1, 2, stageDone, true, 3, 4, "a"
		c.lines, c.value = []line{{1, "b"}, {2, ""}}, 7
		c.op = opRead
		c.out = make([]byte, c.room)
		sent[i] = c
		answer = appendResult(answer, lane.Answer, &c)
	}
	for i, want := range sent {
		got := call{op: opRead, room: want.room, fuel: want.fuel}
		rest, err := parseResult(answer, &got)
		want.input, want.handle, want.given, want.addresses, want.limit = got.input, got.handle, got.given, got.addresses, got.limit
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("result %d: %v\n%v\n%v", i, err, got, want)
		}
		answer = rest
	}
	if len(message) != 0 || len(answer) != 0 {
		t.Errorf("left: %d, %d", len(message), len(answer))
	}
}
