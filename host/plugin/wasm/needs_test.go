package wasm

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// withExports returns base.wat with another ABI version and further exports.
func withExports(t testing.TB, version, exports string) []byte {
	t.Helper()
	text := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), "(i32.const 0x20001)", "(i32.const "+version+")", 1)
	return wat(t, strings.Replace(text, ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"+exports, 1))
}

func TestVersionsOfTheABI(t *testing.T) {
	h := newHost(t, Options{})
	for version, want := range map[string]string{
		"0x20001": "", "0x2ffff": "", // a later minor version only asks for more, which is refused by what it asks for
		"0x10002": "ABI version 1.2, this host needs 2.1: rebuild it with the SDK of this host",
		"0x2":     "ABI version 0.2, this host needs 2.1", "0x30000": "ABI version 3.0, this host needs 2.1",
	} {
		p, err := h.Load(t.Context(), "guest", withExports(t, version, ""), nil)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", version, err, want)
		case err == nil:
			p.Close()
		}
	}
}

func TestInputsThatTheHostCannotGiveAreRefusedWithTheReason(t *testing.T) {
	h := newHost(t, Options{Missing: map[string]string{"nodes": "there is no cluster"}})
	module := withExports(t, "0x20001", `(func (export "sluice_needs") (param i32) (result i32) (i32.const 12))`)
	const want = "sluice_needs asks for nodes (Nodes and CPU of zones, and the index of this node, bit 0x4): there is no cluster"
	if _, err := h.Load(t.Context(), "guest", module, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "podNames") {
		t.Errorf("got %v, want %q", err, want)
	}
	p := load(t, newHost(t, Options{}), module, "")
	if p.Needs("") != abi.NeedNodes|abi.NeedPodNames {
		t.Errorf("needs %b", p.Needs(""))
	}
}

// Every need and kind of key has a name.
func TestInputsAreComplete(t *testing.T) {
	needs, names := uint32(0), map[string]bool{}
	for _, in := range Inputs() {
		if names[in.Name] || in.Text == "" || (in.need == 0) == (in.kind == "") {
			t.Errorf("%+v", in)
		}
		names[in.Name] = true
		needs |= in.need
		if in.kind != "" {
			if kind, _, ok := abi.KeyKind(in.kind + "x"); in.kind != abi.KeyPodCPU && (!ok || kind != in.kind) {
				t.Errorf("%+v: kind %q", in, kind)
			}
		}
	}
	if needs != abi.AllNeeds || len(names) != 13 {
		t.Errorf("needs %b, %d names", needs, len(names))
	}
}

// shed is the part of a decision that a guest asks for beyond the bounds.
func TestShedIsClamped(t *testing.T) {
	text := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), ";; EVIL", `(func $evil (param $req i32) (param $resp i32) (param $size i64) (result i64)
		(i32.store16 offset=62 (local.get $resp) (i32.const 0xffff))
		(i32.store16 offset=78 (local.get $resp) (i32.const 1000))
		(i32.store16 offset=94 (local.get $resp) (i32.const 1))
		(local.get $size))`, 1)
	p := load(t, newHost(t, Options{}), wat(t, text), "")
	req := SampleRequest(4)
	req.PortNumber = 666
	var resp abi.Response
	resp.Reset(4)
	if err := p.Decide(req, &resp); err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint16{1000, 1000, 1, 0} {
		if got := resp.Results[i].ShedPermille; got != want {
			t.Errorf("endpoint %d sheds %d, want %d", i, got, want)
		}
	}
}
