package wasm

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// readsRegister is the body of a function of the base guest that logs what the compiler of wazero 1.12.0 leaves of a select: a
// register that has not been written.
const readsRegister = `(global $k (mut i32) (i32.const 0))
(func $h (global.set $k (i32.add (global.get $k) (i32.const 1))) (if (i32.eq (global.get $k) (i32.const 1000000000)) (then (call $h))))
(func $second (param f64 f64) (result f64) (call $h) (local.get 1))
(func $select (param $c i32) (result f64) (local $x f64) (local $y f64) (local $z f64) (local $s f64)
	(local.set $x (f64.load (i32.const 0))) (local.set $y (f64.load (i32.const 16))) (local.set $z (f64.load (i32.const 32)))
	(local.set $y (call $second (local.get $z) (local.get $x)))
	(local.set $z (call $second (local.get $y) (local.get $y)))
	(local.set $s (select (local.get $y) (local.get $x) (i32.and (local.get $c) (i32.const 1))))
	(local.set $z (call $second (local.get $y) (local.get $y)))
	(local.get $s))
(func $evil (param i32 i32 i64) (result i64)
	(f64.store (i32.const 310000) (call $select (i32.const 0)))
	(call $log (i32.const 1) (i32.const 310000) (i32.const 8))
	(local.get 2))`

// A guest cannot read what the host, or a decision for another namespace, has left in a vector register: neither by the
// compiler's mistake, nor by the next one like it.
func TestGuestsReadNoRegistersOfOthers(t *testing.T) {
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	module := wat(t, strings.Replace(string(base), ";; EVIL", readsRegister, 1))
	var log bytes.Buffer
	h := newHost(t, Options{Log: textLog(&log)})
	p, err := h.LoadWith(t.Context(), "evil", module, nil, LoadOptions{PerNamespace: true})
	if err != nil {
		t.Fatal(err)
	}
	request := func(namespace, node string, port uint16) *abi.Request {
		req := SampleRequest(4)
		req.Namespace, req.PortNumber = namespace, port
		for i := range req.Endpoints {
			req.Endpoints[i].Node = node
		}
		return req
	}
	secret := []byte(strings.Repeat("TOKEN-OF-ANOTHER", 16))
	copied := make([]byte, len(secret))
	victim, evil := request("victim", strings.Repeat("NODE-OF-ANOTHER-", 12), 80), request("evil", "n", 666)
	for round := range 100 {
		for _, req := range []*abi.Request{victim, evil} {
			var resp abi.Response
			resp.Reset(len(req.Endpoints))
			req.Now += 1000
			if round%2 == 0 {
				copy(copied, secret)
			}
			if err := p.Decide(req, &resp); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := strings.Count(log.String(), "evil"); n < 100 {
		t.Fatalf("the guest has logged %d lines", n)
	}
	for _, text := range []string{"TOKEN", "ANOTHER", "NODE", "-OF-"} {
		if i := strings.Index(log.String(), text); i >= 0 {
			t.Errorf("the guest has logged %.200q", log.String()[i:])
		}
	}
}
