//go:build race

package wasm

// raceEnabled: the race detector maps more memory than a compiling process may have.
const raceEnabled = true
