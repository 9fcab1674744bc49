package wasm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Bounds of the settings in one instance, which never forgets any. An instance that reaches one is replaced, and the new one is
// configured with the settings of the calls that follow: those that are no longer in force cost nothing any more.
const (
	maxHandles       = 16384
	maxHandleBytes   = 16 << 20 // of texts
	minHandles       = 64       // before an instance with little free memory is replaced
	handleOverhead   = 128      // bytes of host memory for a handle, besides its text
	maxVerdicts      = 32768
	maxRefusalLength = 300 // bytes of the text of a verdict
)

// schemaFuel is for a byte of settings that the manifest refuses, about what reading it costs.
const schemaFuel = 100

// handle is what an instance returned for a text.
type handle struct {
	id uint32 // abi.NoSettings for no text
	asked
}

// asked are the optional inputs that a plugin asks for with settings.
type asked struct {
	needs uint32 // abi.Need bits
	keys  []string
}

// verdicts are the results of trying settings of Services in instances of their own, by digest: nil means accepted.
type verdicts map[[sha256.Size]byte]error

func (v verdicts) of(s *abi.Settings) (err error, known bool) {
	err, known = v[digestOf(s)]
	return err, known
}

// record records a verdict. If there are too many, all are forgotten: settings that are still in use are tried again.
func (v verdicts) record(s *abi.Settings, err error) {
	if len(v) >= maxVerdicts {
		clear(v)
	}
	v[digestOf(s)] = err
}

// digestOf returns a digest of settings, of those of the policy too: they determine the inputs that may be asked for.
func digestOf(s *abi.Settings) [sha256.Size]byte {
	text, policy := sha256.Sum256([]byte(s.Text)), sha256.Sum256([]byte(s.Policy))
	return sha256.Sum256(append(text[:], policy[:]...))
}

// declared are the inputs that a plugin asks for, by settings that Check has found to be good.
type declared struct {
	mu     sync.RWMutex
	inputs map[string]asked
}

func (d *declared) of(settings string) asked {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.inputs[settings]
}

func (d *declared) set(settings string, in asked) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inputs == nil {
		d.inputs = map[string]asked{}
	}
	d.inputs[settings] = in
}

// settingsError is the error of settings that the plugin refuses, whatever instance it is asked in.
type settingsError struct{ text string }

// Error implements error.
func (e *settingsError) Error() string { return e.text }

// Unwrap returns abi.ErrSettings.
func (e *settingsError) Unwrap() error { return abi.ErrSettings }

func refusal(err error) *settingsError {
	text := err.Error()
	if len(text) > maxRefusalLength {
		text = strings.ToValidUTF8(text[:maxRefusalLength], "") + " …"
	}
	return &settingsError{text}
}

// transient reports whether settings that could not be configured may be accepted at another time: the instance was late, which
// depends on the machine, or other plugins take up the memory.
func (g *guest) transient(err error) bool {
	return errors.Is(err, errLate) || isMemoryError(err) || g != nil && g.call.refused
}

// handleOf returns the handle of a text in this instance, and configures it if it has none.
func (g *guest) handleOf(text string) (handle, error) {
	g.configureFuel = 0
	if h, ok := g.handles[text]; ok {
		return h, nil
	}
	h, err := g.configure(text)
	if err != nil {
		return h, err
	}
	if g.handles == nil {
		g.handles = map[string]handle{}
	}
	g.handles[text] = h
	return h, nil
}

// full reports whether an instance that has no handle for a text should be replaced by one with fewer settings.
func (g *guest) full(text string) bool {
	if _, ok := g.handles[text]; ok || len(g.handles) == 0 {
		return false
	}
	const page = 1 << 16
	scarce := g.call.size > int64(g.p.limits.MemoryPages)*page/4*3
	return len(g.handles) >= maxHandles || g.handleBytes+len(text) > maxHandleBytes || scarce && len(g.handles) >= minHandles
}

// configure passes a text to sluice_configure and returns its handle, with the inputs that the plugin asks for.
func (g *guest) configure(text string) (h handle, err error) {
	p := g.p
	c := call{op: opConfigure, fuel: p.limits.ConfigureFuel, limit: p.limits.ConfigureTime}
	switch {
	case text == "" || !p.configurable && (text == "{}" || text == "null"):
		c.handle, c.given, h.id = abi.NoSettings, true, abi.NoSettings
	case !p.configurable:
		return h, errors.New("settings: the plugin accepts none (it does not export sluice_configure)")
	default:
		if err := p.host.memory.reserveLeaving("settings", int64(len(text))+handleOverhead, p.leave()); err != nil {
			return h, err
		}
		g.handleBytes += len(text)
		g.reserved += int64(len(text)) + handleOverhead // close releases it
		c.input = []byte(text)
	}
	err = g.do(c)
	g.configureFuel = g.call.used
	if err != nil && g.call.stage == stageSettings {
		return h, err
	}
	if !c.given {
		if h.id, err = g.checkSettings(); err != nil {
			return h, err
		}
	}
	if g.call.err != nil && g.call.stage == stageNeeds {
		return h, g.call.err
	}
	if h.asked, err = g.checkInputs(); err == nil {
		err = p.checkListed(h.asked)
	}
	return h, err
}

// checkOwnInputs returns an error if settings of a Service ask for inputs that those of its policy do not: what sluice counts,
// and which labels and annotations it reads, is not for the owner of a Service to say.
func (p *Plugin) checkOwnInputs(s *abi.Settings, in asked) error {
	more := in.needs &^ p.Needs(s.Policy)
	for _, input := range Inputs() {
		if input.need&more != 0 {
			return fmt.Errorf("they need %s (%s), which those of the policy do not", input.Name, input.Text)
		}
	}
	for _, k := range in.keys {
		if !slices.Contains(p.Keys(s.Policy), k) {
			return fmt.Errorf("they declare the key %q, which those of the policy do not", k)
		}
	}
	return nil
}

// prepare returns the instance for a request, configured with its settings. The settings that a Service has set are configured in
// an instance of their own first, so that no text ends the instance that decides for others.
func (p *Plugin) prepare(key instanceKey, req *abi.Request) (g *guest, h handle, err error) {
	if req.Settings.Own {
		if err := p.try(key, req); err != nil {
			return nil, h, err
		}
	}
	g, h, used, err := p.configuredInstance(key, req.Settings.Text)
	p.configured += count(used > 0 && req.Settings.Text != "")
	p.fuel += uint64(max(0, used))
	return g, h, err
}

// configuredInstance returns the instance with a key, the handle of a text in it, and the fuel that was used to configure it.
func (p *Plugin) configuredInstance(key instanceKey, text string) (g *guest, h handle, used int64, err error) {
	if g, err = p.instance(key); err != nil {
		return nil, h, 0, err
	}
	if g.full(text) {
		if g, err = p.recycle(g); err != nil {
			return nil, h, 0, err
		}
	}
	h, err = g.handleOf(text)
	used = g.configureFuel
	if err != nil && len(g.handles) > 0 && !g.transient(err) { // perhaps because of the other settings in it
		if g, err = p.recycle(g); err != nil {
			return nil, h, used, err
		}
		h, err = g.handleOf(text)
		used += g.configureFuel
	}
	return g, h, used, err
}

// recycle replaces an instance by a new one without settings.
func (p *Plugin) recycle(g *guest) (*guest, error) {
	p.drop(g)
	p.recycled++
	return p.instance(g.key)
}

func count(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// try configures the settings of a Service in an instance for trials, unless it is known whether the plugin accepts them. A text
// is refused if it fails in a new instance: whether it does depends on nothing else.
func (p *Plugin) try(key instanceKey, req *abi.Request) error {
	text := req.Settings.Text
	if g := p.pool.guests[key]; g != nil {
		if _, ok := g.handles[text]; ok {
			return nil
		}
	}
	if err, known := p.verdicts.of(&req.Settings); known {
		return err
	}
	if wait := p.trials.wait(req.Namespace, req.Now); wait > 0 {
		p.throttled++
		return &throttledError{wait}
	}
	if err := p.checkSchema(text); err != nil {
		p.trials.charge(req.Namespace, int64(len(text))*schemaFuel)
		p.refused++
		refused := refusal(err)
		p.verdicts.record(&req.Settings, refused)
		return refused
	}
	key.trial, p.triedAt = true, req.Now
	for {
		g := p.pool.guests[key]
		isNew := g == nil || g.full(text) || g.encoder.Full()
		if isNew && g != nil {
			p.drop(g)
		}
		g, err := p.instance(key)
		used := p.report.InitFuel * int64(count(isNew))
		if err == nil {
			var h handle
			if h, err = g.handleOf(text); err == nil {
				err = p.checkOwnInputs(&req.Settings, h.asked)
			}
			used += g.configureFuel
		}
		p.trials.charge(req.Namespace, used)
		p.fuel += uint64(max(0, used))
		switch {
		case err == nil:
			p.accepted++
			p.verdicts.record(&req.Settings, nil)
			return nil
		case g == nil || g.transient(err):
			if g != nil {
				p.drop(g)
			}
			return err
		}
		p.drop(g)
		if isNew {
			p.refused++
			refused := refusal(err)
			p.verdicts.record(&req.Settings, refused)
			return refused
		}
	}
}
