// Command guest is a hostile plugin. It passes the self-test, whose requests have a time in the past, and then does what its
// settings say.
package main

import (
	"math"

	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(func() sdk.Plugin { return new(plugin) }) }

func main() {}

// start2024 is the first second of 2024, in Unix milliseconds.
const start2024 = 1_704_067_200_000

type settings struct {
	Misbehave string
	Revision  int64
}

type plugin struct {
	settings
	kept  [][]byte
	calls int
}

// Configure implements sdk.Plugin.
func (p *plugin) Configure(text []byte) error {
	return sdk.ParseSettings(text, func(f *sdk.Fields) {
		f.String("misbehave", &p.Misbehave)
		f.Int("revision", &p.Revision, 0, math.MaxInt64)
	})
}

// Decide implements sdk.Plugin.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Now() < start2024 {
		return nil
	}
	p.calls++
	switch p.Misbehave {
	case "loop":
		spin(math.MaxInt)
	case "slow": // most of the fuel, again and again
		spin(2_000_000)
		resp.RequeueAfter(sdk.Second)
	case "log":
		for range 10_000 {
			sdk.Log("\x1b[2J forged\r\nlevel=ERROR msg=forged")
		}
	case "grow":
		p.kept = append(p.kept, make([]byte, 1<<20))
	case "allocate":
		for i := range 200 {
			p.kept = append(p.kept[:0], make([]byte, i<<10))
		}
	case "trap":
		panic("trap")
	case "lie":
		for i := range req.NumEndpoints() {
			resp.SetShare(i, 0)
		}
	case "flip":
		for i := range req.NumEndpoints() {
			resp.SetShare(i, 1+(p.calls+i)%60_000)
		}
		resp.RequeueAfter(sdk.Second)
	case "requeue":
		resp.RequeueAfter(sdk.Second)
	case "state":
		resp.SetState(make([]byte, p.calls%4096))
		resp.RequeueAfter(sdk.Second)
	}
	return nil
}

// spin loops n times.
func spin(n int) {
	for i := range n {
		if i < 0 { // never: a loop that a compiler cannot take away
			return
		}
	}
}
