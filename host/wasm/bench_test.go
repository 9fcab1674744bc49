package wasm

import (
	"fmt"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/zone-spill/zonespill"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// BenchmarkDecide is a whole call: encode, call, decide, decode.
func BenchmarkDecide(b *testing.B) {
	h := newHost(b, Options{})
	for _, g := range []struct {
		name   string
		module []byte
	}{
		{"C", cGuest(b, "../../examples/plugin-c/zone_first.c")},
		{"Go", goGuest(b, "../../plugins/zone-spill")},
		{"Go-trivial", goGuest(b, "testdata/goguest")},
	} {
		p := load(b, h, g.module, "")
		for _, n := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", g.name, n), func(b *testing.B) {
				req := SampleRequest(n)
				var resp abi.Response
				b.ReportAllocs()
				for b.Loop() {
					resp.Reset(n)
					if err := p.Decide(req, &resp); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(p.Stats().LastFuel), "fuel/op")
			})
		}
	}
	native, err := sdk.Native(zonespill.New, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("native/%d", n), func(b *testing.B) {
			req := SampleRequest(n)
			var resp abi.Response
			for b.Loop() {
				resp.Reset(n)
				if err := native.Decide(req, &resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
