package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// children are what this program does as a process that compiles or runs plugins.
var children = map[string]func([]string) int{
	"compile-plugin": func(args []string) int { return wasm.CompileMain(args, os.Stdin, os.Stderr) },
	"plugin-process": func(args []string) int { return wasm.ProcessMain(args, os.Stderr) },
}

// modules is the directory of the modules to measure.
type modules struct {
	dir  string
	here bool // plugins run in this process
}

// options are those of sluice run, unless plugins run in this process.
func (m modules) options() wasm.Options {
	o := wasm.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Compiler: []string{"bench", "compile-plugin"}}
	if !m.here {
		o.Process = []string{"bench", "plugin-process"}
	}
	return o
}

// path returns the file of a bundled plugin's module, or one in the directory.
func (m modules) path(name string) string {
	if filepath.Ext(name) == "" {
		return filepath.Join(m.dir, "plugins", name+".wasm")
	}
	return filepath.Join(m.dir, name)
}

func (m modules) read(name string) ([]byte, error) {
	module, err := os.ReadFile(m.path(name))
	if err != nil {
		return nil, fmt.Errorf("%w (make bench builds it)", err)
	}
	return module, nil
}

// load loads a plugin without settings.
func (m modules) load(ctx context.Context, name string) (*wasm.Plugin, func(), error) {
	module, err := m.read(name)
	if err != nil {
		return nil, nil, err
	}
	host, err := wasm.New(ctx, m.options())
	if err != nil {
		return nil, nil, err
	}
	p, err := host.Load(ctx, "bench", module, nil)
	if err != nil {
		return nil, nil, err
	}
	return p, func() { p.Close(); host.Close(ctx) }, nil
}
