package plugintest_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	host "github.com/sluice-proxy/sluice/host/plugin/plugintest"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// times multiplies the weight of the first endpoint by the number of its calls so far, which is its state.
type times struct{ After time.Duration }

func (p *times) Configure(text []byte) error {
	n, err := strconv.Atoi(strings.Trim(string(text), `{}"after: `))
	p.After = time.Duration(n) * time.Second
	return err
}

func (p *times) Decide(req *sdk.Request, resp *sdk.Response) error {
	n := len(req.State()) + 1
	share := req.Endpoint(0).Share()
	resp.SetShare(0, share*n)
	resp.SetReason(0, fmt.Sprintf("call %d of share %d", n, share/sdk.One))
	resp.SetState(make([]byte, n))
	resp.RequeueAfter(sdk.Duration(p.After))
	return nil
}

// chain is run by plugins that are named by their position in it.
const chain = "chain first second\n" +
	"settings `{\"after\": 10}` plugin=first\nsettings `{\"after\": 60}` plugin=second\n" +
	`node a
endpoint x y
decide
> x  50.0 %  first: call 1 of share 1; second: call 1 of share 1
> y  50.0 %
> again after 10s
after 10s
decide x
> x  80.0 %  first: call 2 of share 1; second: call 2 of share 2
> again after 10s
# Only the plugin whose settings change forgets its state.
` + "settings `{\"after\": 20}` plugin=first\n" + `decide x
> x  75.0 %  first: call 1 of share 1; second: call 3 of share 1
> again after 20s
restart
decide x
> x  88.9 %  first: call 2 of share 1; second: call 4 of share 2
> again after 20s
chain second
decide x
> x  50.0 %  second: call 1 of share 1
> again after 1m0s
calls
> 9
`

func TestChain(t *testing.T) {
	var loaded []string
	load := func(name, settings string) (policy.Plugin, error) {
		loaded = append(loaded, name)
		n, err := sdk.NewNativePlugin(func() sdk.Plugin { return &times{} }, []byte(settings))
		return native{n}, err
	}
	f, err := scenario.Parse("chain", []byte(chain))
	if err != nil {
		t.Fatal(err)
	}
	result, err := scenariotest.Run(f, host.New(load), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if got := strings.Join(loaded, " "); got != "first second first first second" {
		t.Errorf("loaded %s", got)
	}
	if _, err := scenariotest.Run(f, sdktest.NewEngine(func() sdk.Plugin { return &times{} }), nil); err == nil || !strings.Contains(err.Error(), "chain:6: decide: a chain of plugins cannot run natively") {
		t.Error(err)
	}
}

func TestErrorsOfChains(t *testing.T) {
	for text, want := range map[string]string{
		"chain a b a":                      `x:1: chain: plugin "a" is named twice`,
		"chain a=":                         "usage: chain NAME…",
		"chain" + strings.Repeat(" a", 17): "x:1: chain: more than 16 plugins",
		"chain a\nsettings {}":             `x:2: settings: no plugin "" in the chain: want plugin=NAME`,
		"chain a\nsettings {} plugin=b":    `x:2: settings: no plugin "b" in the chain`,
		"settings {} plugin=a":             `x:1: settings: no plugin "a" in the chain`,
		"settings {}\nchain a":             "x:2: chain: the settings above are of no plugin of this chain",
	} {
		f, err := scenario.Parse("x", []byte(text+"\n"))
		if err == nil {
			_, err = scenariotest.Run(f, nil, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
