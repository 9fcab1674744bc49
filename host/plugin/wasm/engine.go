package wasm

import (
	"errors"
	"time"
)

// engine runs the instances of one module. The plugin keeps what decisions depend on: settings, verdicts, breakers, repeats,
// limits of the log.
type engine interface {
	// open returns a new instance, which opStart initializes.
	open(o instanceOptions) (instance, error)
	// forget drops resident pages of code that are not needed at the moment.
	forget()
	// bytes is the host memory that the code takes.
	bytes() int64
	close() error
}

// instanceOptions are options of an instance.
type instanceOptions struct {
	leave int64 // bytes of the memory of all plugins that it must leave to others
}

// instance is one instance of a module. After a call that has failed it can only be closed.
type instance interface {
	// do makes a call and sets its results. It keeps nothing of the call.
	do(c *call)
	// alive reports whether calls can succeed: the process of an instance may have ended.
	alive() bool
	// hostBytes is the host memory that it takes.
	hostBytes() int64
	close()
}

// op is what an instance is asked for.
type op uint32

// Operations. Those after opDecide are for checks of conformance.
const (
	opStart     op = iota // runs the start function and _initialize
	opVersion             // value: what sluice_abi_version returns
	opConfigure           // passes input to sluice_configure, unless handle is given: value, needs, out: the keys
	opDecide              // passes input, a request, to sluice_decide: out: the response
	opAlloc               // value: the address of room bytes
	opRead                // out: room bytes from address
	opWrite               // writes input to address
	opRaw                 // sluice_decide with buffers that the caller has allocated: value: the length of the response
	opSize                // value: the size of the memory
	lastOp
)

// Stages of opConfigure: which function has failed, or returned an error.
const (
	stageSettings = iota
	stageNeeds
	stageKeys
	stageDone
)

// call is one call of an instance and its results.
type call struct {
	op        op
	input     []byte
	handle    uint32 // of settings, for opConfigure without input
	given     bool   // handle is
	room      int    // bytes
	addresses [4]uint32
	fuel      int64         // that it may use
	limit     time.Duration // of CPU time

	skipped     bool // it has not been made, see messages
	err         error
	value       int64
	needs       uint32
	stage       int
	out         []byte // until the next call
	used        int64  // fuel
	refused     bool   // the memory has not grown, because other plugins take up the budget
	size        int64  // bytes of linear memory
	lines       []line // logged, until the next call
	dropped     int    // lines that were too many
	loggedError string // the first line at level error
}

// line is a line that a guest has logged.
type line struct {
	level uint32
	text  string // printable
}

// callError is why a call failed. Its text may contain names from the module.
type callError struct {
	cause error // errNoFuel, errLate or nil
	text  string
	// unclear: the process has ended, perhaps because of the call of another plugin.
	unclear bool
}

// Error implements error.
func (e *callError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *callError) Unwrap() error { return e.cause }

// isUnclear reports whether the process of a call has ended, perhaps because of the call of another plugin.
func isUnclear(err error) bool {
	var e *callError
	return errors.As(err, &e) && e.unclear
}

// Causes of a failed call that Stats counts.
var (
	errNoFuel = errors.New("out of fuel")
	errLate   = errors.New("deadline exceeded")
	// errProcess is the cause of calls that fail because their process has ended.
	errProcess = errors.New("the process of the plugin has ended")
)

// IsLate reports whether a call of a plugin failed because it took too much CPU time. It may succeed later: a processor may be
// slow, and a virtual machine counts the time that others have on its host as its own.
func IsLate(err error) bool { return errors.Is(err, errLate) }

// IsTemporary reports whether a plugin that could not be loaded may be loaded later from the same file: it was late, its process
// did not start in time or was killed, perhaps because the node had no memory left, or other plugins had the memory of all
// plugins.
func IsTemporary(err error) bool { return IsLate(err) || isResourceError(err) }
