package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// picky is a plugin whose settings are {"weight": N}. It refuses weights that are not 1 to 9, and counts its calls with its
// state.
func picky() *fakePlugin {
	return &fakePlugin{revision: "1", decide: func(req *abi.Request, resp *abi.Response) error {
		weight := uint32(1)
		if text := req.Settings.Text; text != "" {
			if _, err := fmt.Sscanf(text, `{"weight":%d}`, &weight); err != nil || weight < 1 || weight > 9 {
				return fmt.Errorf("%w: %s", abi.ErrSettings, text)
			}
		}
		resp.State = append(append(resp.State[:0], req.State...), 'x')
		return favorFirst(weight)(req, resp)
	}}
}

func newSettingsFixture() (*fixture, *fakePlugin) {
	p := picky()
	b := newFixture(p)
	b.policy.Steps[0].Settings, b.policy.Steps[0].ServiceSettings = `{"weight":2}`, []string{"weight"}
	return b, p
}

// annotate sets the annotation of the Service, on a new object as a source does.
func (b *fixture) annotate(text string) {
	svc := *b.in.Service
	svc.Settings = text
	b.in.Service = &svc
}

func (b *fixture) settings() ServiceSettings { return b.evaluator.Settings(b.in.Service, b.policy) }

func TestServiceSettingsReplaceFieldsOfThePolicy(t *testing.T) {
	b, _ := newSettingsFixture()
	b.expect(t, "policy", FromChain, 2, 1, 1)
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.expect(t, "Service", FromChain, 5, 1, 1)
	if s := b.settings(); s.Err != nil || s.InForce.Steps[0].Settings != `{"weight":5}` || !s.InForce.Steps[0].Own || s.InForce.Steps[0].PolicySettings != `{"weight":2}` {
		t.Errorf("%+v", s)
	}
	b.annotate("")
	b.expect(t, "removed", FromChain, 2, 1, 1)
	if len(b.evaluator.settings) != 0 {
		t.Error("the state stays")
	}
}

func badTexts() map[string]string {
	return map[string]string{
		`{`:                                 "invalid JSON",
		`[]`:                                "not a JSON object",
		`null`:                              "not a JSON object",
		`{"plugin0": 5}`:                    `"plugin0": not a JSON object`,
		`{"plugin0": {}} x`:                 "unexpected text",
		`{"plugin0": {"weight": 1, }}`:      "invalid JSON",
		`{"other": {"weight": 1}}`:          `policy p has no plugin "other" (plugins: plugin0)`,
		`{"plugin0": {"color": 1}}`:         "plugin0.\"color\": policy p does not let Services set it (allowed: weight)",
		`{"plugin0": {"weight": 10}}`:       `plugin plugin0: settings refused: {"weight":10}`,
		`{"plugin0": {"weight": "\u0000"}}`: "settings refused",
		`{"plugin0": {"weight": 1}, "plugin0": {"weight": 2}}`:                               "set twice",
		`{"plugin0": {"weight": {"a": 1, "a": 2}}}`:                                          "set twice",
		`{"plugin0": {"weight": ` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}}`: "nested deeper than 32 levels",
		`{"plugin0": {"weight": "` + strings.Repeat("x", model.MaxSettings) + `"}}`:          "longer than 16384 bytes",
	}
}

func TestBadServiceSettingsKeepTheLastGoodOnes(t *testing.T) {
	for text, want := range badTexts() {
		b, _ := newSettingsFixture()
		if len(text) > model.MaxSettings {
			text = text[:model.MaxSettings+1] // as a source does
		}
		b.annotate(text)
		b.expect(t, "no good settings", FromChain, 2, 1, 1)
		b.annotate(`{"plugin0": {"weight": 5}}`)
		b.expect(t, "good", FromChain, 5, 1, 1)
		b.annotate(text)
		b.expect(t, "last good settings of "+text[:min(40, len(text))], FromChain, 5, 1, 1)
		s := b.settings()
		if s.Err == nil || !strings.HasPrefix(s.Err.Error(), "Service shop/web: metadata.annotations[sluice.dev/settings]: ") || !strings.Contains(s.Err.Error(), want) || len(s.Err.Error()) > 400 {
			t.Errorf("%.60s: %v, want %s", text, s.Err, want)
		}
		b.annotate(`{"plugin0": {"weight": 6}}`)
		b.expect(t, "corrected", FromChain, 6, 1, 1)
		if s := b.settings(); s.Err != nil {
			t.Errorf("then: %v", s.Err)
		}
	}
}

func TestRefusedSettingsAreAskedAboutOnce(t *testing.T) {
	b, p := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 10}}`)
	b.decide()
	calls := p.calls
	for range 10 {
		b.now = b.now.Add(time.Minute)
		b.decide()
	}
	if p.calls != calls {
		t.Errorf("%d more calls", p.calls-calls)
	}
}

func TestRefusedSettingsLoseNoState(t *testing.T) {
	b, _ := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.decide()
	state := func() string {
		for _, m := range b.evaluator.pools {
			return string(m.enforced.steps[0].state)
		}
		return ""
	}
	for i := range 3 {
		b.annotate(fmt.Sprintf(`{"plugin0": {"weight": %d}}`, 10+i))
		b.expect(t, "refused", FromChain, 5, 1, 1)
	}
	if got := state(); len(got) != 4 {
		t.Errorf("state %q, want that of four calls", got)
	}
}

func TestNewRevisionIsAskedAgainAboutRefusedSettings(t *testing.T) {
	b, p := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 10}}`)
	b.expect(t, "refused", FromChain, 2, 1, 1)
	p.revision, p.decide = "2", favorFirst(10)
	b.expect(t, "accepted", FromChain, 10, 1, 1)
	if s := b.settings(); s.Err != nil {
		t.Error(s.Err)
	}
	p.revision, p.decide = "3", picky().decide
	b.expect(t, "the last good settings are refused", FromChain, 2, 1, 1)
	if s := b.settings(); s.Err == nil || s.InForce != b.policy {
		t.Errorf("%+v", s)
	}
}

func TestPolicyThatAllowsLessPutsItsOwnSettingsInForce(t *testing.T) {
	b, _ := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.expect(t, "allowed", FromChain, 5, 1, 1)
	less := *b.policy
	less.Steps = []Step{{Plugin: "plugin0", Settings: `{"weight":3}`}}
	b.policy = &less
	b.expect(t, "not allowed", FromChain, 3, 1, 1)
	if s := b.settings(); s.Err == nil || !strings.Contains(s.Err.Error(), "does not let Services set it (allowed: none)") {
		t.Error(s.Err)
	}
}

func TestFailureIsNoRefusal(t *testing.T) {
	b, p := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.expect(t, "good", FromChain, 5, 1, 1)
	p.decide = failDecide
	b.annotate(`{"plugin0": {"weight": 6}}`)
	b.expect(t, "failing", FromLastGood, 5, 1, 1)
	if s := b.settings(); s.Err != nil || s.InForce.Steps[0].Settings != `{"weight":6}` {
		t.Errorf("%+v", s)
	}
}

func TestLateRefusalKeepsTheDecision(t *testing.T) {
	b, _ := newSettingsFixture()
	late := &lateCaller{immediate: true}
	b.late = late
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.expect(t, "good", FromChain, 5, 1, 1)
	late.immediate = false
	b.annotate(`{"plugin0": {"weight": 10}}`)
	b.expectPending(t, "being tried", FromLastGood, 5, 1, 1)
	late.begin()
	late.end(b.evaluator)
	b.expectPending(t, "refused, the last good settings are asked again", FromLastGood, 5, 1, 1)
	late.begin()
	late.end(b.evaluator)
	b.expect(t, "answered", FromChain, 5, 1, 1)
	if s := b.settings(); s.Err == nil {
		t.Error("no error")
	}
}

func TestLastGoodSettingsSurviveRestart(t *testing.T) {
	b, p := newSettingsFixture()
	b.annotate(`{"plugin0": {"weight": 5}}`)
	b.expect(t, "good", FromChain, 5, 1, 1)
	b.annotate(`{"plugin0": {"weight": 10}}`)
	b.expect(t, "refused", FromChain, 5, 1, 1)
	b.restart(t)
	calls := p.calls
	b.expect(t, "restarted", FromChain, 5, 1, 1)
	if s := b.settings(); s.Err == nil || !errors.Is(s.Err, abi.ErrSettings) || p.calls != calls+2 {
		t.Errorf("%v, %d calls", s.Err, p.calls-calls)
	}
	for _, m := range b.evaluator.pools {
		if len(m.enforced.steps[0].state) != 3 {
			t.Errorf("state %q, want that of three calls", m.enforced.steps[0].state)
		}
	}
	b.evaluator.Prune(func(model.Name) bool { return false })
	if len(b.evaluator.settings) != 0 {
		t.Error("still remembered")
	}
}

func TestSavedSettingsAreBounded(t *testing.T) {
	b, _ := newSettingsFixture()
	long := strings.Repeat(" ", model.MaxSettings-40) + `{"plugin0": {"weight": 5}}`
	for i := range maxSavedSettings/len(long) + 100 {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
		b.evaluator.settings[name] = &ownSettings{good: long, text: long}
	}
	refused := model.Name{Namespace: "shop", Name: "z"}
	b.evaluator.settings[refused] = &ownSettings{good: long, text: "{", err: errors.New("refused")}
	total, found := 0, false
	for _, s := range b.evaluator.saveSettings() {
		total += len(s.Text)
		found = found || s.name() == refused
	}
	if total > maxSavedSettings || total < maxSavedSettings*9/10 || !found {
		t.Errorf("%d bytes; those that are needed are saved: %t", total, found)
	}
}
