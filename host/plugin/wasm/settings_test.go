package wasm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// settingsGuest is testdata/settings.wat.
func settingsGuest(t testing.TB) []byte {
	t.Helper()
	return wat(t, hosts.Complete(mustRead(t, "testdata/settings.wat")))
}

// c returns settings of testdata/settings.wat. Those with different numbers are different texts with the same meaning.
func c(char byte, number int) string { return fmt.Sprintf(`{"c":"%c","n":%d}`, char, number) }

// askWith calls a plugin with settings for a Service of a namespace, and returns the share of the first endpoint.
func askWith(p *Plugin, namespace string, s abi.Settings, now int64) (int, error) {
	req := SampleRequest(3)
	req.Namespace, req.PortNumber, req.Now, req.Generation, req.Settings = namespace, 666, now, uint64(now), s
	var resp abi.Response
	resp.Reset(3)
	err := p.Decide(req, &resp)
	return int(resp.Results[0].Value), err
}

func own(text string) abi.Settings { return abi.Settings{Text: text, Own: true} }

func openSettings(t testing.TB, limits Limits, o LoadOptions) *Plugin {
	t.Helper()
	p := loadWith(t, newHost(t, Options{Limits: limits}), settingsGuest(t), o)
	return p
}

func TestOneInstanceHasAnyNumberOfSettings(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	for round := range 3 {
		for i := range 200 {
			want := 1 + i%9
			if got, err := askWith(p, "a", abi.Settings{Text: c(byte('0'+want), i)}, later+int64(round*200+i)); err != nil || got != want {
				t.Fatalf("settings %d: weight %d, %v", i, got, err)
			}
		}
	}
	if got, err := askWith(p, "a", abi.Settings{}, later); err != nil || got != 1 {
		t.Errorf("without settings: weight %d, %v", got, err)
	}
	if s := p.Stats(); s.Instances != 1 || s.Open != 1 || s.Settings.Handles != 200 || s.Settings.Configured != 200 {
		t.Errorf("%+v", s)
	}
}

func TestRandomSettingsOfManyNamespaces(t *testing.T) {
	for _, perNamespace := range []bool{false, true} {
		p := openSettings(t, Limits{}, LoadOptions{PerNamespace: perNamespace, Instances: 3, RepeatOneIn: 2})
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range 2000 {
			char := "123456789tnhs"[rnd.IntN(13)]
			s := abi.Settings{Text: c(char, rnd.IntN(20)), Own: rnd.IntN(2) == 0 || char > '9'}
			got, err := askWith(p, fmt.Sprint("ns", rnd.IntN(4)), s, later+int64(i)*1000)
			switch char {
			case 't', 'n':
				if !errors.Is(err, abi.ErrSettings) {
					t.Fatalf("%+v: %v", s, err)
				}
			case 'h', 's':
				if err != nil {
					t.Fatalf("%+v: %v", s, err)
				}
			default:
				if err != nil || got != int(char-'0') {
					t.Fatalf("%+v: weight %d, %v", s, got, err)
				}
			}
		}
	}
}

func TestRefusedSettingsOfAServiceHurtNoOther(t *testing.T) {
	for char, want := range map[byte]string{
		't': "sluice_configure: wasm error: unreachable",
		'l': "sluice_configure: out of fuel",
		'n': "settings refused: the plugin returned an error",
	} {
		p := openSettings(t, Limits{ConfigureFuel: 1_000_000}, LoadOptions{})
		if _, err := askWith(p, "shop", abi.Settings{Text: c('5', 0)}, later); err != nil {
			t.Fatal(err)
		}
		before := p.pool.guests[instanceKey{}]
		for i := range 5 {
			_, err := askWith(p, "evil", own(c(char, i%2)), later)
			if !errors.Is(err, abi.ErrSettings) || !strings.Contains(err.Error(), want) {
				t.Fatalf("%c: %v, want %s", char, err, want)
			}
		}
		s := p.Stats()
		if p.pool.guests[instanceKey{}] != before || s.Failures != 0 || s.Suspended != (Suspensions{}) || s.Settings.Refused != 2 {
			t.Errorf("%c: the instance of others is replaced, or the plugin suspended: %+v", char, s)
		}
		if got, err := askWith(p, "evil", own(c('7', 0)), later); err != nil || got != 7 {
			t.Errorf("%c: then weight %d, %v", char, got, err)
		}
	}
}

// TestLateSettingsOfAServiceAreTriedAgain: whether they are late depends on the machine.
func TestLateSettingsOfAServiceAreTriedAgain(t *testing.T) {
	requireChildren(t)
	inProcesses = true
	defer func() { inProcesses = false }()
	p := openSettings(t, Limits{ConfigureFuel: 1 << 50, ConfigureTime: 5 * time.Millisecond}, LoadOptions{})
	if _, err := askWith(p, "shop", abi.Settings{Text: c('5', 0)}, later); err != nil {
		t.Fatal(err)
	}
	_, err := askWith(p, "evil", own(c('l', 0)), later)
	var de *DecideError
	if !errors.As(err, &de) || !errors.Is(err, errLate) || errors.Is(err, abi.ErrSettings) || !de.Suspended || de.RetryAfter == 0 {
		t.Fatalf("%+v", err)
	}
	if s := p.Stats(); s.Settings.Refused != 0 || s.Late != 1 {
		t.Errorf("%+v", s)
	}
	if got, err := askWith(p, "evil", own(c('6', 0)), later); err != nil || got != 6 {
		t.Errorf("then: weight %d, %v", got, err)
	}
}

func TestSettingsThatFailInAUsedInstanceAreTriedInANewOne(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	for i := range 4 {
		if _, err := askWith(p, "shop", own(c('5', i)), later); err != nil {
			t.Fatal(err)
		}
		if _, err := askWith(p, "shop", own(c("hs"[i%2], i)), later); err != nil {
			t.Fatalf("whether settings are accepted depends on others: %v", err)
		}
	}
	if s := p.Stats(); s.Settings.Refused != 0 || s.Settings.Recycled == 0 {
		t.Errorf("%+v", s)
	}
}

func TestSettingsOfAServiceThatMakeThePluginFailSuspendTheirNamespaceOnly(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	var err error
	for i := range 5 {
		_, err = askWith(p, "evil", own(c('d', i)), later)
	}
	var de *DecideError
	if !errors.As(err, &de) || !de.Suspended || de.RetryAfter == 0 {
		t.Fatalf("not suspended: %v", err)
	}
	if got, err := askWith(p, "evil", abi.Settings{Text: c('5', 0)}, later); err != nil || got != 5 {
		t.Errorf("with the settings of the policy: weight %d, %v", got, err)
	}
	if got, err := askWith(p, "shop", own(c('6', 0)), later); err != nil || got != 6 {
		t.Errorf("another namespace: weight %d, %v", got, err)
	}
}

func TestSettingsOfAServiceThatMakeThePluginImpureAreRefused(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{RepeatOneIn: 2})
	var err error
	for i := 0; err == nil && i < maxCalls; i++ {
		_, err = askWith(p, "evil", own(c('i', 0)), later+int64(i))
	}
	if !errors.Is(err, abi.ErrSettings) || !strings.Contains(err.Error(), "not a function of its request") {
		t.Fatal(err)
	}
	if got, err := askWith(p, "shop", abi.Settings{Text: c('5', 0)}, later); err != nil || got != 5 {
		t.Errorf("another namespace: weight %d, %v", got, err)
	}
}

func TestSettingsOfAServiceDeclareNoOtherKeys(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	for _, text := range []string{c('5', 0), c('k', 0)} {
		if _, err := p.Check(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if keys := p.Keys(c('k', 0)); len(keys) != 1 || keys[0] != "service-label:a" || len(p.Keys(c('5', 0))) != 0 {
		t.Fatalf("keys %q", keys)
	}
	_, err := askWith(p, "shop", abi.Settings{Text: c('k', 1), Own: true, Policy: c('5', 0)}, later)
	if !errors.Is(err, abi.ErrSettings) || !strings.Contains(err.Error(), `they declare the key "service-label:a", which those of the policy do not`) {
		t.Errorf("a key that the policy does not declare: %v", err)
	}
	if _, err := askWith(p, "shop", abi.Settings{Text: c('k', 1), Own: true, Policy: c('k', 0)}, later); err != nil {
		t.Errorf("one that it does: %v", err)
	}
}

func TestSettingsOfAServiceNeedNoOtherInputs(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	for text, want := range map[string]uint32{c('5', 0): 0, c('o', 0): abi.NeedOutcomes} {
		if _, err := p.Check(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		if got := p.Needs(text); got != want {
			t.Errorf("%s: needs %b, want %b", text, got, want)
		}
	}
	_, err := askWith(p, "shop", abi.Settings{Text: c('o', 1), Own: true, Policy: c('5', 0)}, later)
	if !errors.Is(err, abi.ErrSettings) || !strings.Contains(err.Error(), "they need outcomes (outcomes of connections), which those of the policy do not") {
		t.Errorf("an input that the policy does not need: %v", err)
	}
	if _, err := askWith(p, "shop", abi.Settings{Text: c('o', 1), Own: true, Policy: c('o', 0)}, later); err != nil {
		t.Errorf("one that it does: %v", err)
	}
}

// TestKeysDoNotWaitForADecision: the engine's loop asks for them.
func TestKeysDoNotWaitForADecision(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if keys := p.Keys(""); len(keys) != 0 {
		t.Error(keys)
	}
}

func TestInstanceWithTooManySettingsIsReplaced(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	n := maxHandles + 100
	if testing.Short() {
		n = maxHandles + 1
	}
	for i := range n {
		want := 1 + i%9
		if got, err := askWith(p, "shop", abi.Settings{Text: c(byte('0'+want), i)}, later); err != nil || got != want {
			t.Fatalf("settings %d: weight %d, %v", i, got, err)
		}
	}
	if s := p.Stats(); s.Settings.Recycled != 1 || s.Settings.Handles > maxHandles || s.Instances != 2 {
		t.Errorf("%+v", s)
	}
	big := strings.Repeat(" ", 1<<20-100)
	for i := range maxHandleBytes/len(big) + 2 {
		if _, err := askWith(p, "shop", abi.Settings{Text: c('5', i) + big}, later); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.Stats(); s.Settings.Recycled < 2 {
		t.Errorf("long settings: %+v", s)
	}
}

func TestNewSettingsOfANamespaceHaveAShareOfTheFuel(t *testing.T) {
	p := openSettings(t, Limits{ConfigureFuel: 1_000_000}, LoadOptions{})
	var wait *throttledError
	n := 0
	for ; n < 1000; n++ {
		_, err := askWith(p, "evil", own(c('l', n)), later)
		if errors.As(err, &wait) {
			break
		}
	}
	if n < trialBurst/2 || n > trialBurst+1 {
		t.Fatalf("%d settings that cost the most are tried at once", n)
	}
	if got, err := askWith(p, "shop", own(c('6', 0)), later); err != nil || got != 6 {
		t.Errorf("another namespace: weight %d, %v", got, err)
	}
	if got, err := askWith(p, "evil", abi.Settings{Text: c('5', 0)}, later); err != nil || got != 5 {
		t.Errorf("the settings of the policy: weight %d, %v", got, err)
	}
	if got, err := askWith(p, "evil", own(c('7', 0)), later+wait.wait.Milliseconds()+1); err != nil || got != 7 {
		t.Errorf("after %s: weight %d, %v", wait.wait, got, err)
	}
	if s := p.Stats(); s.Settings.Throttled == 0 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

// TestTrialsOfManyNamespacesAreBounded compares the buckets with a sum over all charges.
func TestTrialsOfManyNamespacesAreBounded(t *testing.T) {
	tr := trials{unit: 1000}
	now, spent := int64(0), int64(0)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		now += int64(rnd.IntN(20))
		ns := fmt.Sprint(rnd.IntN(5000))
		if tr.wait(ns, now) == 0 {
			fuel := int64(rnd.IntN(1000))
			tr.charge(ns, fuel)
			spent += fuel
		}
	}
	burst := int64(namespacesAtOne * trialBurst * 1000)
	if most := burst + now*namespacesAtOne*1000/trialSeconds/1000 + 1000; spent > most || spent < most/2 {
		t.Errorf("%d fuel in %s, want at most %d", spent, time.Duration(now)*time.Millisecond, most)
	}
	if len(tr.namespaces) > 5000 {
		t.Errorf("%d buckets", len(tr.namespaces))
	}
}

func TestSettingsTakeMemoryOfAllPlugins(t *testing.T) {
	h := newHost(t, Options{})
	p := loadWith(t, h, settingsGuest(t), LoadOptions{})
	before, _ := h.MemoryInUse()
	text := c('5', 0) + strings.Repeat(" ", 10_000)
	if _, err := askWith(p, "shop", abi.Settings{Text: text}, later); err != nil {
		t.Fatal(err)
	}
	if after, _ := h.MemoryInUse(); after < before+10_000 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := h.MemoryInUse(); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}

func TestInstanceForTrialsIsClosedWhenItIsIdle(t *testing.T) {
	p := openSettings(t, Limits{}, LoadOptions{})
	if _, err := askWith(p, "shop", own(c('5', 0)), later); err != nil || p.Stats().Open != 2 {
		t.Fatalf("%v, %d instances", err, p.Stats().Open)
	}
	for i := range trimEvery {
		if _, err := askWith(p, "shop", own(c('5', 0)), later+trialIdle+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.Stats().Open; n != 1 {
		t.Errorf("%d instances", n)
	}
}
