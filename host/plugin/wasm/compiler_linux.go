package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
)

// CompileMain is the main function of the process that Options.Compiler starts. args are the arguments that the host has
// appended to it. It limits its own process, compiles the rewritten module on stdin into a folder, and returns the exit code.
func CompileMain(args []string, stdin io.Reader, stderr io.Writer) int {
	code, err := compileMain(args, stdin)
	if err != nil {
		fmt.Fprintln(stderr, err)
	}
	return code
}

// checkConfinement is the only argument of a process that prints the layers of its confinement, and ends.
const checkConfinement = "check-confinement"

func compileMain(args []string, stdin io.Reader) (code int, err error) {
	if len(args) == 1 && args[0] == checkConfinement {
		layers, err := confineSelf("", 10, uint64(DefaultCompileLimits().Memory))
		if err != nil {
			return exitStorage, err
		}
		return 0, json.NewEncoder(os.Stdout).Encode(layers)
	}
	if len(args) != 4 {
		return exitUsage, errors.New("compile a plugin: this command is run by sluice itself")
	}
	dir := args[0]
	var numbers [3]uint64 // seconds of CPU time, bytes of memory, pages of the guest's memory
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(args[i+1], 10, 63); err != nil {
			return exitUsage, err
		}
	}
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		os.Exit(exitCPUTime)
	}()
	maps, err := mapping.OpenMaps()
	if err != nil {
		return exitStorage, err
	}
	defer maps.Close()
	if _, err := confineSelf(dir, numbers[0], numbers[1]); err != nil {
		return exitStorage, err
	}
	metered, err := io.ReadAll(io.LimitReader(stdin, maxMetered))
	if err != nil {
		return exitStorage, err
	}
	defer func() {
		if r := recover(); r != nil {
			code, err = exitRefused, fmt.Errorf("panic in the compiler: %v", r)
		}
	}()
	if err := CheckExecutable(); err != nil {
		return exitExecutable, err
	}
	// One worker: a second one would take as much memory again.
	switch err := compileTo(context.Background(), dir, metered, uint32(numbers[2]), maps); {
	case isStorageError(err):
		return exitStorage, err
	case err != nil:
		return exitRefused, firstLine(err)
	}
	return 0, nil
}

const (
	exitUsage  = 2
	maxMetered = 128 << 20 // bytes: far above the limits of module package meter
	maxCode    = 128 << 20 // bytes of a file with compiled code
)

// niceness is the priority of the compiler. At 19 it takes a minute and more on two processors with four busy processes of the
// same control group, so that on a full node a plugin would not load; at 5 it takes 25 s, of which 3.5 are its own.
const niceness = 5

// confineSelf limits this process, which has a process group of its own: low priority, CPU seconds, bytes of memory, no files but
// those of a folder, no network, no other programs.
func confineSelf(folder string, seconds, memory uint64) ([]confine.Layer, error) {
	runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(40) // memory matters more than time
	debug.SetMemoryLimit(int64(memory / 2))
	return confine.Enter(&confine.Policy{
		Nice: niceness, CPU: seconds, Memory: memory, FileSize: maxCode, Files: 32, Folder: folder,
		Calls: slices.Concat(confine.Code(), confine.Files(), confine.Runtime()),
	})
}
