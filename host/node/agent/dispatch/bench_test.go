package dispatch

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// idlePlugin does nothing.
type idlePlugin struct{}

func (idlePlugin) Decide(*abi.Request, *abi.Response) error { return nil }
func (idlePlugin) Needs(string) uint32                      { return 0 }
func (idlePlugin) Keys(string) []string                     { return nil }
func (idlePlugin) Counters() []string                       { return nil }
func (idlePlugin) Role() abi.Role                           { return abi.RoleReduce }

func (idlePlugin) Revision() string { return "1" }

// BenchmarkCall measures what a call costs beyond the plugin.
func BenchmarkCall(b *testing.B) {
	d := New(Options{})
	defer d.Stop(time.Minute)
	c := []*policy.Call{call(idlePlugin{}, "p", "a", "x", 1)}
	for b.Loop() {
		if got := d.Call(c, time.Second); len(got) != 1 {
			b.Fatalf("%d answers", len(got))
		}
	}
}
