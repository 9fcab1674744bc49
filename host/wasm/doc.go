// Package wasm runs plugins: WebAssembly modules that answer abi.Requests, under limits that nothing a module does
// can pass. It owns loading (meter, compile, check, self-test), the guest's imports, calls, and what happens to a
// guest that errs. It knows nothing of policies or Services; Plugin is what host/policy calls.
//
// There is no clock here: time comes from the requests, and for what Report measures from Options.Now.
package wasm
