package meter

import (
	"bytes"
	"fmt"
)

// feature is a feature of WebAssembly that is newer than version 2.0.
type feature struct {
	what string // with its verb
	flag string // of clang and rustc
}

var (
	atomics      = feature{"threads (atomic instructions) are", "atomics"}
	exceptions   = feature{"exception handling (try, catch, throw) is", "exception-handling"}
	extendedExpr = feature{"an extended constant expression is", "extended-const"}
	multiMemory  = feature{"a second memory is", "multimemory"}
	references   = feature{"typed function references and garbage collection are", "gc"}
	relaxedSIMD  = feature{"relaxed SIMD is", "relaxed-simd"}
	tailCalls    = feature{"tail calls (return_call) are", "tail-call"}
)

// String says that the feature is not supported, and how to build without it.
func (f feature) String() string {
	return fmt.Sprintf("%s not supported: build for WebAssembly 2.0 (clang -mno-%[2]s, rustc -C target-feature=-%[2]s)", f.what, f.flag)
}

const (
	componentAdvice = "a component, not a core module: components are not supported: build for preview 1 of WASI " +
		"(Go: GOOS=wasip1 GOARCH=wasm; Rust: wasm32-wasip1; TinyGo: -target=wasip1), or extract its core module with wasm-tools component unbundle"
	memory64Advice = "a 64-bit %s is not supported: build for wasm32, not wasm64"
	objectAdvice   = "an object file, not a module: link it (wasm-ld --no-entry, or clang without -c)"
)

// describeFile returns what a file is that is not a WebAssembly module, and what to do about it.
func describeFile(b []byte) string {
	for _, kind := range []struct{ magic, text string }{
		{"\x7fELF", "it is a program or library for Linux: build it with GOOS=wasip1 GOARCH=wasm, or for wasm32"},
		{"MZ", "it is a program for Windows: build it with GOOS=wasip1 GOARCH=wasm, or for wasm32"},
		{"\xcf\xfa\xed\xfe", "it is a program for macOS: build it with GOOS=wasip1 GOARCH=wasm, or for wasm32"},
		{"!<arch>\n", "it is an archive of object files: build it with -buildmode=c-shared, or link it"},
		{"\x1f\x8b", "it is compressed with gzip: decompress it"},
		{"\x28\xb5\x2f\xfd", "it is compressed with zstd: decompress it"},
		{"PK\x03\x04", "it is a zip archive: extract the module"},
		{"version https://git-lfs", "it is a pointer of Git LFS: git lfs pull"},
	} {
		if bytes.HasPrefix(b, []byte(kind.magic)) {
			return kind.text
		}
	}
	switch text := bytes.TrimSpace(b[:min(len(b), 512)]); {
	case len(b) == 0:
		return "the file is empty: build it again"
	case len(b) > 262 && string(b[257:262]) == "ustar":
		return "it is a tar archive: extract the module"
	case bytes.HasPrefix(text, []byte("(module")), bytes.HasPrefix(text, []byte(";;")):
		return "it is in the text format: assemble it with wat2wasm"
	case bytes.HasPrefix(text, []byte("package ")), bytes.HasPrefix(text, []byte("//")):
		return "it is source code: build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared"
	}
	return "it does not start with the magic number 00 61 73 6d: name the .wasm file that the compiler writes"
}
