package wasm

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// ABI 1.1 provides the Nodes of zones on request only; ABI 1.0 always did.
func TestABI10GuestsGetNodesWithoutAsking(t *testing.T) {
	base, err := os.ReadFile("testdata/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	h, err := New(ctx, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(ctx)
	const asks = `(func (export "sluice_needs") (result i32) (i32.const 4))`
	for name, c := range map[string]struct {
		version, export string
		want            uint32
	}{
		"1.0":                   {"0x10000", "", abi.NeedNodes},
		"1.0 with needs":        {"0x10000", asks, abi.NeedNodes},
		"1.1":                   {"0x10001", "", 0},
		"1.1 with needs":        {"0x10001", asks, abi.NeedNodes},
		"1.2, a future version": {"0x10002", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(base), "(i32.const 0x10000)", "(i32.const "+c.version+")", 1)
			text = strings.Replace(text, ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"+c.export, 1)
			p, err := h.Load(ctx, "guest", wat(t, text), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if p.Needs() != c.want {
				t.Errorf("needs %b, want %b", p.Needs(), c.want)
			}
		})
	}
}
