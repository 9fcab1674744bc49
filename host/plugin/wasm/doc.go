// Package wasm runs policy plugins: WebAssembly modules, under limits that no module can exceed. It loads them (meter,
// compile, check, self-test), provides their imports, calls them, and replaces a guest after any error. It knows neither
// policies nor Services: host/core/policy calls Plugin.
//
// It has no clock: time comes from the requests, and from Options.Now for the durations of Report. Only package lane
// measures time, the CPU time of running calls, to end those that are late.
package wasm
