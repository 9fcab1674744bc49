package rebalance

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// chain is a closed loop with a chain of plugins, each of which is called when it asks for it.
type chain struct {
	t       *testing.T
	plugins []*sdk.NativePlugin
	state   [][]byte
	last    []*abi.Response
	parts   []float64 // of new connections
	call    []int     // second
	eps     []abi.Endpoint
	states  []abi.EndpointStates
	open    []float64
	shed    []int
	begin   []float64
	moved   float64
}

func newChain(t *testing.T, eps []abi.Endpoint, open []float64, plugins ...*sdk.NativePlugin) *chain {
	n := len(plugins)
	return &chain{t: t, plugins: plugins, state: make([][]byte, n), states: make([]abi.EndpointStates, n), last: make([]*abi.Response, n), call: make([]int, n), eps: sdktest.NewRequest("a", nil, eps...).Endpoints,
		open: open, shed: make([]int, len(open)), begin: make([]float64, len(open))}
}

// step runs a second: connections are shed and made again by what endpoints get, and counted.
func (c *chain) step(second int) {
	back := 0.0
	for i := range c.open {
		n := min(c.open[i], c.begin[i]*float64(c.shed[i])/1000/60)
		c.open[i] -= n
		back += n
	}
	c.moved += back
	for i := range c.parts {
		c.open[i] += back * c.parts[i]
	}
	req := sdktest.NewRequest("a", nil, c.eps...)
	req.Now, req.ConnectionsAgeMS = sdktest.Now+int64(second)*1000, 0
	for i := range c.open {
		req.Endpoints[i].Connections = uint32(math.Round(c.open[i]))
	}
	again := false // a plugin is called again if what it gets has changed
	for k, p := range c.plugins {
		if c.last[k] == nil || again || c.call[k] <= second {
			resp := new(abi.Response)
			resp.Reset(len(c.eps))
			req.State, req.EndpointStates = c.state[k], c.states[k].For(req)
			if err := p.DecideNoRecover(req, resp); err != nil {
				c.t.Fatal(err)
			}
			again = again || c.last[k] == nil || !slices.Equal(sdktest.Answers(resp), sdktest.Answers(c.last[k]))
			c.states[k] = abi.StatesOf(req, resp)
			c.state[k], c.last[k], c.call[k] = slices.Clone(resp.State), resp, math.MaxInt
			if resp.RequeueAfter > 0 {
				c.call[k] = second + int(resp.RequeueAfter.Seconds())
			}
		}
		req.Apply(p.Role(), abi.AnswerOf(c.last[k]))
	}
	c.parts = req.Parts(nil)
	for i := range c.open {
		v := 0
		for _, resp := range c.last {
			v = max(v, int(resp.Results[i].ShedPermille))
		}
		if v != c.shed[i] {
			c.shed[i], c.begin[i] = v, c.open[i]
		}
	}
}

func native(t *testing.T, newPlugin func() sdk.Plugin, settings string) *sdk.NativePlugin {
	t.Helper()
	p, err := sdk.NewNativePlugin(newPlugin, []byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until returns how long it takes until the last endpoint has a part of its fair share, and how many connections are shed until
// then.
func (c *chain) until(part float64) (seconds int, moved float64) {
	total := 0.0
	for _, n := range c.open {
		total += n
	}
	for second := range 4 * 3600 {
		if c.step(second); c.open[len(c.open)-1] >= part*total/float64(len(c.open)) {
			return second, c.moved
		}
	}
	c.t.Fatalf("in the end %.0f", c.open)
	return 0, 0
}

// With least-loaded after it, fewer connections have to be shed for the same.
func TestLeastLoadedMakesShedsMoreEffective(t *testing.T) {
	for _, fresh := range []int{1, 3, 9} {
		start := func() (eps []abi.Endpoint, open []float64) {
			for i := range 9 + fresh {
				ago, n := 48*time.Hour, 100.
				if i >= 9 {
					ago, n = 0, 0
				}
				eps, open = append(eps, since(1, ago)...), append(open, n)
			}
			return eps, open
		}
		const settings = `{"duration":"24h","tolerancePercent":10}`
		eps, open := start()
		alone, shedAlone := newChain(t, eps, open, native(t, New, settings)).until(.85)
		eps, open = start()
		together, shedTogether := newChain(t, eps, open, native(t, New, settings), native(t, leastloaded.New, "")).until(.85)
		t.Logf("%d of %d new: alone %d s, %.0f shed; with least-loaded %d s, %.0f shed", fresh, 9+fresh, alone, shedAlone, together, shedTogether)
		if together > alone*3/4 || shedTogether > shedAlone*3/4 {
			t.Errorf("%d new: alone %d s, %.0f shed; with least-loaded %d s, %.0f shed", fresh, alone, shedAlone, together, shedTogether)
		}
	}
}

// lifecycle before it: the share of the newcomer grows, and it never has more connections than that.
func TestShedsFollowWarmUp(t *testing.T) {
	eps, open := append(since(3, 48*time.Hour), since(1, 0)...), []float64{400, 400, 400, 0}
	rebalance := native(t, New, `{"duration":"24h","maxShedPercentPerMinute":100,"tolerancePercent":1,"delay":"0s","jitter":"0s"}`)
	slow := native(t, lifecycle.New, `{"warm":{"duration":"10m"}}`)
	c := newChain(t, eps, open, slow, rebalance)
	for second := range 3600 {
		c.step(second)
		if share := min(1, .1+float64(second+1)/600); c.open[3] > 300*share*1.34+2 { // of 1200, among three and a part
			t.Fatalf("after %d s the newcomer has %.0f connections", second, c.open[3])
		}
	}
	if c.open[3] < 290 {
		t.Errorf("in the end %.0f", c.open)
	}
}
