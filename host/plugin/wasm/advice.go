package wasm

import (
	"errors"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// errCommand refuses a module whose exports work only while its main function runs.
var errCommand = errors.New("module refused: a command, not a library: it exports _start and no _initialize: build it with -buildmode=c-shared " +
	"(GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared; TinyGo: the same; Rust: crate-type cdylib; C: clang -Wl,--no-entry or -mexec-model=reactor)")

// importAdvice tells the author of a module that imports from another module than those of plugins what to do.
func importAdvice(module string) string {
	switch {
	case module == "gojs" || module == "go":
		return "it is built for browsers, with GOOS=js: build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared"
	case module == "wasi_unstable" || strings.HasPrefix(module, "wasi:") || strings.HasPrefix(module, "wasi_"):
		return "it is built for another version of WASI: build it for preview 1 (GOOS=wasip1, or wasm32-wasip1)"
	case module == "__wbindgen_placeholder__" || module == "wbg":
		return "it is built for JavaScript, with wasm-bindgen: leave out the crates that need it, and build it for wasm32-wasip1"
	case module == "env":
		return "these are functions that are declared and not defined: define them, or link their library; build without Emscripten"
	}
	return "leave out what needs the import"
}

// exportAdvice tells the author of a module that lacks exports of the ABI what to do.
func exportAdvice(info *meter.Info) string {
	for _, e := range info.Exports {
		if strings.HasPrefix(e.Name, "sluice_") {
			return "export all that sdk/ABI.md requires; in C, include sluice.h, which defines all but sluice_decide"
		}
	}
	return "in Go, import github.com/sluice-proxy/sluice/sdk and call sdk.Register in an init function; in C, include sluice.h; " +
		"sdk/ABI.md lists the exports"
}
