package wasm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// askFor calls a plugin for a Service. evilPort makes the guests of these tests fail.
func askFor(p *Plugin, namespace, service string, s abi.Settings, port uint16, now int64) error {
	req := SampleRequest(3)
	req.Namespace, req.Service, req.PortNumber, req.Now, req.Generation, req.Settings = namespace, service, port, now, uint64(now), s
	var resp abi.Response
	resp.Reset(3)
	return p.Decide(req, &resp)
}

// evilWAT returns a module that keeps the shares, but runs text for evilPort.
func evilWAT(t testing.TB, text string) []byte {
	t.Helper()
	return wat(t, hosts.Complete("(func $evil (param i32 i32 i64) (result i64) "+text+")"))
}

// suspendedError returns the error of a call that has not reached the plugin, nil if it has.
func suspendedError(err error) *DecideError {
	if e := new(DecideError); errors.As(err, &e) && e.Suspended {
		return e
	}
	return nil
}

// misbehaviors are the ways in which a decision for evilPort fails.
var misbehaviors = map[string]string{
	"trap":           "(unreachable)",
	"no fuel":        "(loop $l (br $l)) (unreachable)",
	"error":          "(i64.const -1)",
	"invalid answer": "(i32.store (local.get 1) (i32.const 0)) (local.get 2)",
	"too long":       "(i64.const 0x7fffffff)",
}

// TestOneFailingServiceHarmsItselfOnly however its decisions fail: other ports, Services, namespaces and policies with the same
// module are decided all the time.
func TestOneFailingServiceHarmsItselfOnly(t *testing.T) {
	for name, text := range misbehaviors {
		t.Run(name, func(t *testing.T) {
			p := load(t, newHost(t, Options{}), evilWAT(t, text), "")
			suspended := 0
			for now := int64(later); now < later+120_000; now += 1000 {
				if err := askFor(p, "shop", "bad", abi.Settings{}, evilPort, now); err == nil {
					t.Fatal("no failure")
				} else if suspendedError(err) != nil {
					suspended++
				}
				for _, c := range []struct{ namespace, service string }{{"shop", "good"}, {"lab", "bad"}} {
					if err := askFor(p, c.namespace, c.service, abi.Settings{}, 80, now); err != nil {
						t.Fatalf("after %d s, %s: %v", (now-later)/1000, c, err)
					}
				}
			}
			if suspended < 100 {
				t.Errorf("suspended in %d of 120 seconds", suspended)
			}
		})
	}
}

// TestFailingServicesDoNotStarveAHealthyPolicyOfTheModule: four Services fail whenever they are asked, before the healthy one.
func TestFailingServicesDoNotStarveAHealthyPolicyOfTheModule(t *testing.T) {
	for _, c := range []struct {
		name        string
		bad, good   abi.Settings
		ofNamespace func(i int) string
	}{
		{"one namespace", abi.Settings{Text: c('d', 0)}, abi.Settings{Text: c('5', 0)}, func(int) string { return "shop" }},
		{"many namespaces", abi.Settings{Text: c('d', 0)}, abi.Settings{Text: c('5', 0)}, func(i int) string { return fmt.Sprint("n", i) }},
		{"many settings", abi.Settings{}, abi.Settings{Text: c('5', 0)}, func(int) string { return "lab" }},
		{"settings of Services", own(c('d', 0)), abi.Settings{Text: c('5', 0)}, func(int) string { return "shop" }},
		{"both of Services", own(c('d', 0)), own(c('5', 0)), func(i int) string { return fmt.Sprint("n", i) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := openSettings(t, Limits{}, LoadOptions{})
			for now := int64(later); now < later+600_000; now += 1000 {
				for i := range 4 {
					s := c.bad
					if s.Text == "" {
						s.Text = fmt.Sprintf(`{"c":"d","n":%d}`, i)
					}
					_ = askFor(p, c.ofNamespace(i), fmt.Sprint("bad", i), s, 666, now)
				}
				if err := askFor(p, "shop", "good", c.good, 666, now); err != nil {
					t.Fatalf("after %d s: %v", (now-later)/1000, err)
				}
			}
		})
	}
}

// TestServicesThatHaveNotFailedGoFirst: after each suspension of all, those that have not failed are asked before those that
// have. One that the plugin has answered for does not wait at all.
func TestServicesThatHaveNotFailedGoFirst(t *testing.T) {
	for answered, want := range map[bool]int64{false: 3000, true: 0} { // 1 s after three have failed, and 2 s after the fourth
		p := load(t, newHost(t, Options{}), evilWAT(t, "(unreachable)"), "")
		var waited int64
		for now := int64(later); now < later+600_000; now += 1000 {
			for i := range 4 {
				_ = askFor(p, "shop", fmt.Sprint("bad", i), abi.Settings{}, evilPort, now)
			}
			req := SampleRequest(3)
			req.Namespace, req.Service, req.Now, req.Settings.Answered = "shop", "good", now, answered
			var resp abi.Response
			resp.Reset(3)
			if p.Decide(req, &resp) != nil {
				waited = now - later + 1000
			}
		}
		if waited != want {
			t.Errorf("answered before: %t; a healthy Service waited for %d ms, want %d", answered, waited, want)
		}
	}
}

// TestModuleThatFailsForAllIsSuspended with few calls: those of settings and namespaces that are not known yet do not try it in
// vain.
func TestModuleThatFailsForAllIsSuspended(t *testing.T) {
	for _, c := range []struct{ namespaces, settings int }{{1, 1}, {40, 1}, {1, 40}, {40, 40}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p := openSettings(t, Limits{}, LoadOptions{})
			for now := int64(later); now < later+600_000; now += 1000 {
				for i := range 100 {
					_ = askFor(p, fmt.Sprint("n", i%c.namespaces), fmt.Sprint("s", i), abi.Settings{Text: fmt.Sprintf(`{"c":"d","n":%d}`, i%c.settings)}, 666, now)
				}
			}
			if s := p.Stats(); s.Calls > 60 || s.Suspended.Namespaces+s.Suspended.Settings+s.Suspended.Modules == 0 {
				t.Errorf("%d calls: %+v", s.Calls, s.Suspended)
			}
		})
	}
}

// TestRecoveredModuleIsAskedAgainForAll within the longest suspension.
func TestRecoveredModuleIsAskedAgainForAll(t *testing.T) {
	p := load(t, newHost(t, Options{}), evilWAT(t, "(unreachable)"), "")
	ask := func(port uint16, now int64) (failed int) {
		for i := range 50 {
			if askFor(p, fmt.Sprint("n", i%5), fmt.Sprint("s", i), abi.Settings{}, port, now) != nil {
				failed++
			}
		}
		return failed
	}
	now := int64(later)
	for ; now < later+3600_000; now += 1000 {
		if ask(evilPort, now) != 50 {
			t.Fatal("no failure")
		}
	}
	for end := now + (maxSuspension + recovery).Milliseconds(); now <= end; now += 1000 {
		ask(80, now)
	}
	if n := ask(80, now); n > 0 {
		t.Errorf("%d Services are still suspended", n)
	}
}

// TestTenantsLearnNothingOfEachOthersServices: the error of a suspension names a Service to those of its namespace only.
func TestTenantsLearnNothingOfEachOthersServices(t *testing.T) {
	var log strings.Builder
	p := load(t, newHost(t, Options{Log: textLog(&log)}), evilWAT(t, `(call $log (i32.const 3) (i32.const 16) (i32.const 6)) (i64.const -1)`), "")
	for i := range 3 {
		_ = askFor(p, fmt.Sprint("tenant", i), "secret", abi.Settings{}, evilPort, later)
	}
	err := askFor(p, "other", "web", abi.Settings{}, 80, later)
	if suspendedError(err) == nil || strings.Contains(err.Error(), "tenant") || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "other namespaces") {
		t.Errorf("another namespace: %v", err)
	}
	err = askFor(p, "tenant1", "web", abi.Settings{}, 80, later)
	if suspendedError(err) == nil || !strings.Contains(err.Error(), "tenant1/secret") || strings.Contains(err.Error(), "tenant0") || strings.Contains(err.Error(), "tenant2") {
		t.Errorf("the namespace of a culprit: %v", err)
	}
	if !strings.Contains(log.String(), "tenant0/secret") || !strings.Contains(log.String(), "tenant2/secret") {
		t.Errorf("the log does not name the culprits:\n%s", &log)
	}
}

// TestFailingServicePortsAreBounded: those of a namespace with many are forgotten before those of others, and counted.
func TestFailingServicePortsAreBounded(t *testing.T) {
	p := load(t, newHost(t, Options{Limits: Limits{InstancesPerSecond: 1000}}), evilWAT(t, "(unreachable)"), "")
	for range 3 {
		_ = askFor(p, "shop", "bad", abi.Settings{}, evilPort, later)
	}
	now := int64(later)
	const more = 100
	for i := range maxFailingPorts + more {
		now += 10 // as fast as there are instances
		if err := askFor(p, "crowd", "good", abi.Settings{}, 80, now); err != nil {
			t.Fatal(err)
		}
		if err := askFor(p, "crowd", fmt.Sprint("s", i), abi.Settings{}, evilPort, now); err == nil || suspendedError(err) != nil {
			t.Fatalf("Service %d: %v", i, err)
		}
	}
	if s := p.Stats().Suspended; s.Forgotten != more+1 || len(p.breakers.ports) != maxFailingPorts {
		t.Errorf("%+v, %d failing Service ports", s, len(p.breakers.ports))
	}
	_ = askFor(p, "shop", "bad", abi.Settings{}, evilPort, now)
	if e := suspendedError(askFor(p, "shop", "bad", abi.Settings{}, 80, now)); e == nil || e.Failures != 4 {
		t.Errorf("the failures of another namespace are forgotten: %v", e)
	}
	_ = askFor(p, "late", "bad", abi.Settings{}, evilPort, now+2*maxSuspension.Milliseconds()+1)
	if len(p.breakers.ports) != 1 || len(p.breakers.groups) > int(levels) {
		t.Errorf("%d failing Service ports and %d groups after a long time", len(p.breakers.ports), len(p.breakers.groups))
	}
}

// TestReloadedModuleStartsWithoutSuspensions, as after a restart of sluice: a healthy Service waits for as long as before at
// most.
func TestReloadedModuleStartsWithoutSuspensions(t *testing.T) {
	p := load(t, newHost(t, Options{}), evilWAT(t, "(unreachable)"), "")
	for restart := range int64(3) {
		for i := range 20 {
			_ = askFor(p, "shop", fmt.Sprint("bad", i), abi.Settings{}, evilPort, later+restart)
		}
		if s := p.Stats().Suspended; s.Namespaces != 1 {
			t.Errorf("%+v", s)
		}
		if err := askFor(p, "shop", "good", abi.Settings{}, 80, later+restart+1000); err != nil {
			t.Errorf("restart %d: %v", restart, err)
		}
		p.Reset()
		if s := p.Stats().Suspended; s != (Suspensions{}) {
			t.Errorf("%+v", s)
		}
	}
}

// TestServiceThatKillsItsProcessHarmsItselfOnly: calls that are made together with its own are not charged with it.
func TestServiceThatKillsItsProcessHarmsItselfOnly(t *testing.T) {
	requireChildren(t)
	for name, code := range map[string][]byte{"ends": {0x0f, 0x0b}, "hangs": {0xeb, 0xfe}} {
		t.Run(name, func(t *testing.T) {
			p := openNative(t, code)
			starts := p.Stats().Calls
			for now := int64(later); now < later+20_000; now += 1000 {
				calls := callsOf(now, ports(6, 80)...)
				calls[2].Request.PortNumber, calls[2].Request.Service = evilPort, "bad"
				askAll(p, calls)
				for i, c := range calls {
					if i != 2 && c.Err != nil && !errors.Is(c.Err, policy.ErrUnasked) {
						t.Errorf("after %d s, call %d: %v", (now-later)/1000, i, c.Err)
					}
					if i == 2 && c.Err == nil {
						t.Error("no failure")
					}
				}
			}
			if s := p.Stats(); s.Failures > 8 || s.Calls < starts+100 || s.Suspended.Ports != 1 || s.Suspended.Namespaces+s.Suspended.Modules > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestKilledProcessFailsNoOtherPluginOfTheModule: the shadow of a policy, or another plugin with the same module, is decided by
// the same process, at the same time.
func TestKilledProcessFailsNoOtherPluginOfTheModule(t *testing.T) {
	requireChildren(t)
	for name, code := range map[string][]byte{"ends": {0x0f, 0x0b}, "hangs": {0xeb, 0xfe}} {
		t.Run(name, func(t *testing.T) {
			dir, module := native(t, code)
			h := newHost(t, Options{CacheDir: dir, Process: childCommand("plugin"), Limits: Limits{DecideTime: 20 * time.Millisecond}})
			p, other := loadWith(t, h, module, LoadOptions{}), loadWith(t, h, module, LoadOptions{})
			done, wrong := make(chan bool), make(chan error)
			go func() {
				var first error
				for now := int64(later); ; now += 10 {
					select {
					case <-done:
						wrong <- first
						return
					case <-time.After(100 * time.Microsecond): // pace of its calls
					}
					if err := askFor(other, "shop", "good", abi.Settings{}, 80, now); err != nil && first == nil {
						first = err
					}
				}
			}()
			for now := int64(later); now < later+3600_000; now += 200_000 {
				if err := askFor(p, "shop", "bad", abi.Settings{}, evilPort, now); err == nil {
					t.Error("no failure")
				}
			}
			close(done)
			if err := <-wrong; err != nil || other.Stats().Failures > 0 {
				t.Errorf("the other plugin: %v", err)
			}
		})
	}
}

// TestWaitsOfManyFailingServicesGrow, so that all together are asked a few times a second at most.
func TestWaitsOfManyFailingServicesGrow(t *testing.T) {
	p := load(t, newHost(t, Options{}), evilWAT(t, "(unreachable)"), "")
	const services = 400
	due := make([]int64, services)
	begin := p.Stats().Failures
	for now := int64(later); now < later+600_000; now += 1000 {
		for i := range services {
			if now >= due[i] {
				var e *DecideError
				errors.As(askFor(p, "shop", fmt.Sprint("bad", i), abi.Settings{}, evilPort, now), &e)
				due[i] = now + e.RetryAfter.Milliseconds()
			}
			_ = askFor(p, "shop", "good", abi.Settings{}, 80, now)
		}
	}
	if n := p.Stats().Failures - begin; n > services+600*uint64(time.Second/retryEach) {
		t.Errorf("%d failures in 600 s", n)
	}
}
