package plugintest_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/policy"
	host "github.com/sluice-proxy/sluice/host/plugin/plugintest"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// moody asks for everything, uses all of a response, and fails now and then: by what it sees alone, as plugins have to.
type moody struct {
	salt int64
}

func (p *moody) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("salt", &p.salt, 0, math.MaxUint32) })
}

func (p *moody) Needs() sdk.Need {
	return sdk.NeedOutcomes | sdk.NeedConnections | sdk.NeedNodes | sdk.NeedPodNames
}

func (p *moody) Keys() []string {
	return []string{sdk.PodLabel("track"), sdk.ServiceLabel("tier"), sdk.PodCPU}
}

func (p *moody) Decide(req *sdk.Request, resp *sdk.Response) error {
	sum := uint32(p.salt) + uint32(req.Now()/1000) + uint32(req.Generation()) + 7*uint32(len(req.State()))
	for _, b := range req.State() {
		sum = sum*31 + uint32(b)
	}
	if i, n, known := req.NodeIndex(); known {
		sum += uint32(100*i + n)
	}
	for i := range req.NumEndpoints() {
		e, o := req.Endpoint(i), req.Outcomes(i)
		t, _ := req.TotalOutcomes(i)
		open, _ := e.Connections()
		track, _ := req.PodValue(i, 0)
		cpu, _ := req.PodValue(i, 1)
		prior, _ := e.PriorWeight()
		mix := sum*uint32(i+1) + uint32(o.Attempts+3*o.Unanswered+5*o.Refused+t.Answered) + uint32(open+prior) +
			uint32(len(req.Text(track))+len(req.Text(cpu))+len(req.Text(e.Pod())))
		switch mix % 11 {
		case 0:
			resp.KeepDraining(i)
			resp.SetResetAfter(i, sdk.Duration(mix%40)*sdk.Second)
		case 1:
			resp.SetShed(i, int(mix%1000))
		case 2, 3:
			resp.SetReason(i, "mood")
		}
		resp.SetShare(i, int(mix%7)*sdk.One)
	}
	if age, counted := req.ConnectionsAge(); counted {
		sum += uint32(age.Seconds())
	}
	resp.SetState(binary.LittleEndian.AppendUint32(nil, sum))
	if sum%3 > 0 {
		resp.RequeueAfter(sdk.Duration(sum%50) * 400 * sdk.Millisecond)
	}
	if sum%5 == 0 {
		resp.SetBalance(sdk.BalanceRoundRobin)
	}
	if sum%9 == 0 {
		return errors.New("in a bad mood")
	}
	return nil
}

// native makes a native plugin one of the planner.
type native struct{ *sdk.NativePlugin }

func (n native) Needs(string) uint32  { return n.NativePlugin.Needs() }
func (n native) Keys(string) []string { return n.NativePlugin.Keys() }
func (n native) Revision() string     { return "the same with all settings" }

func newMoody() sdk.Plugin { return &moody{} }

func loadMoody(_, settings string) (policy.Plugin, error) {
	n, err := sdk.NewNativePlugin(newMoody, []byte(settings))
	return native{n}, err
}

// FuzzRun checks that both engines run every scenario that can be parsed, with the same result.
func FuzzRun(f *testing.F) {
	for seed := range 5 {
		f.Add(randomScenario(rand.New(rand.NewPCG(uint64(seed), 16)), []string{"", `{"salt": 1}`}, 10))
	}
	f.Add("decide")
	f.Add("node a\nservice family=IPv6\nendpoint x y label:track=a\nconnections x=1\nremove x\ntraffic 9\nafter 2s\nrestart\ncalls pool=local")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := scenario.Parse("f", []byte(text))
		if err != nil {
			return
		}
		plans := 0
		budget := func() error {
			if plans++; plans > 100 {
				return errors.New("too long")
			}
			return nil
		}
		small, err := scenariotest.Run(file, sdktest.NewEngine(newMoody), budget)
		plans = 0
		planned, planErr := scenariotest.Run(file, host.New(loadMoody), budget)
		if fmt.Sprint(err) != fmt.Sprint(planErr) {
			t.Fatalf("sdktest: %v, planner: %v", err, planErr)
		}
		if err == nil && string(small.Format()) != string(planned.Format()) {
			t.Errorf("sdktest:\n%s\nplanner:\n%s", small.Format(), planned.Format())
		}
	})
}

// TestEnginesAgreeAboutAPluginThatFails compares the two implementations with a plugin that does everything that plugins can.
func TestEnginesAgreeAboutAPluginThatFails(t *testing.T) {
	for seed := range 10 * scenarios() {
		text := randomScenario(rand.New(rand.NewPCG(uint64(seed), 15)), []string{"", `{"salt": 1}`, `{"salt": 2}`}, 60)
		f, err := scenario.Parse("random", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		small, err := scenariotest.Run(f, sdktest.NewEngine(newMoody), nil)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, numbered(text))
		}
		if f, err = scenario.Parse("random", small.Format()); err != nil {
			t.Fatal(err)
		}
		planned, err := scenariotest.Run(f, host.New(loadMoody), nil)
		if err == nil {
			err = planned.Err()
		}
		if err != nil {
			t.Fatalf("seed %d: sdktest (-), planner (+): %v\n%s", seed, err, numbered(string(small.Format())))
		}
	}
}
