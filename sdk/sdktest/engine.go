package sdktest

import (
	"cmp"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// engine runs a plugin in scenarios without a sandbox. It is a second, simple implementation of what the proxy does: of the
// Service rules (endpoints), of the call of one plugin (pool) and of the outcomes of connections (watch). Tests compare both over
// random scenarios.
type engine struct {
	create   func() sdk.Plugin
	settings string
	plugin   *sdk.NativePlugin // nil: to be created
	pools    map[uint8]*pool
	watch    watch
	calls    map[uint8]int // by pool
}

// NewEngine returns an engine for scenariotest.Run that calls a plugin natively.
func NewEngine(create func() sdk.Plugin) scenariotest.Engine {
	return &engine{create: create, pools: map[uint8]*pool{}, calls: map[uint8]int{}}
}

// pool is the state of a pool.
type pool struct {
	since      map[netip.AddrPort]since
	generation uint64
	input      *abi.Request // the last one, without what is no reason to call the plugin
	called     *abi.Request // input of the last call; nil: none with these settings
	state      []byte
	states     abi.EndpointStates
	saved      *saved // until the next answer
	resp       *abi.Response
	weights    []uint16 // for resp
	err        error
	backoff    time.Duration
	answeredAt int64 // Unix milliseconds, as all times
	requeueAt  int64 // that the plugin has asked for; 0: none
	wakeAt     int64 // decide again then, 0: only on a change
	reading    uint64
	good       map[netip.AddrPort]goodRow // the last good decision; nil: none
	balance    uint8
	decision   scenariotest.Decision
}

// since is when an endpoint became ready and terminating, 0 if it is not.
type since struct{ ready, terminating int64 }

// saved is the state of the settings before.
type saved struct {
	settings string
	state    []byte
	states   abi.EndpointStates
}

// Restart implements scenariotest.Engine.
func (e *engine) Restart(time.Time) error {
	e.plugin, e.watch = nil, watch{}
	for id, p := range e.pools {
		fresh := &pool{since: p.since, generation: p.generation, saved: p.saved, good: p.good, balance: p.balance}
		if fresh.saved == nil {
			fresh.saved = &saved{e.settings, p.state, p.states}
		}
		fresh.useSaved(e.settings)
		e.pools[id] = fresh
	}
	return nil
}

// Read implements scenariotest.Engine.
func (e *engine) Read(c *scenariotest.Cluster, now time.Time) { e.watch.read(c, now) }

// Decision implements scenariotest.Engine.
func (e *engine) Decision(c *scenariotest.Cluster, id uint8) (scenariotest.Decision, error) {
	p := e.pools[id]
	if p == nil {
		return scenariotest.Decision{}, errors.New("this pool is not used: the traffic policies of the Service decide which ones are")
	}
	return p.decision, nil
}

// Plan implements scenariotest.Engine.
func (e *engine) Plan(c *scenariotest.Cluster, now time.Time) (wake time.Time, err error) {
	if len(c.Chain) > 0 {
		return wake, errors.New("a chain of plugins cannot run natively: run it with `sluice plugin test`")
	}
	if e.plugin == nil || c.Settings != e.settings {
		if e.plugin, err = sdk.NewNativePlugin(e.create, []byte(c.Settings)); err != nil {
			return wake, err
		}
		if c.Settings != e.settings {
			for _, p := range e.pools {
				p.changeSettings(e.settings, c.Settings)
			}
		}
		e.settings = c.Settings
	}
	for id, used := range []bool{abi.PoolCluster: usesCluster(c), abi.PoolLocal: usesLocal(c)} {
		p := e.pools[uint8(id)]
		if !used {
			delete(e.pools, uint8(id))
			continue
		}
		if p == nil {
			p = &pool{}
			e.pools[uint8(id)] = p
		}
		p.wakeAt = 0
		e.decide(p, c, uint8(id), now)
		if at := time.UnixMilli(p.wakeAt); p.wakeAt != 0 && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	return wake, nil
}

// changeSettings forgets the state of the plugin, except if the settings are again those of its last answer.
func (p *pool) changeSettings(before, after string) {
	if p.saved == nil {
		p.saved = &saved{before, p.state, p.states}
	}
	p.useSaved(after)
	p.called, p.resp, p.err, p.backoff, p.requeueAt, p.reading = nil, nil, nil, 0, 0, 0
}

func (p *pool) useSaved(settings string) {
	if p.state, p.states = nil, nil; p.saved.settings == settings {
		p.state, p.states = p.saved.state, p.saved.states
	}
}

// decide decides for a pool.
func (e *engine) decide(p *pool, c *scenariotest.Cluster, id uint8, now time.Time) {
	eps := endpoints(c, id)
	p.updateTimes(c, now)
	d := scenariotest.Decision{Origin: scenariotest.FromDefault, Endpoints: make([]scenariotest.Share, len(c.Endpoints))}
	defer func() {
		d.Calls = e.calls[id]
		p.decision = d
	}()
	some := false
	for i := range eps {
		if eps[i].isDefault {
			d.Endpoints[eps[i].index].Weight, some = 1, true
		}
	}
	if !some {
		return
	}
	req := e.request(p, c, eps, id, now)
	err := e.call(p, req, now)
	if p.wakeAt = p.requeueAt; err != nil {
		d.Err = err
		if !c.UseDefault {
			p.applyLastGood(eps, &d)
		}
		return
	}
	p.saved, d.Origin = nil, scenariotest.FromPlugin
	p.combine(req)
	for i := range eps {
		share := &d.Endpoints[eps[i].index]
		*share = p.good[eps[i].addr].share(eps[i].conditions)
		share.Reason = p.resp.Results[i].Reason
	}
	d.Balance = p.balance
	if p.requeueAt != 0 {
		d.Requeue = time.UnixMilli(p.requeueAt)
	}
}

// call calls the plugin if its input has changed, if it wants to be called again, or because of new failures.
func (e *engine) call(p *pool, req *abi.Request, now time.Time) error {
	nowMS := now.UnixMilli()
	input := *req
	input.Now, input.Generation, input.ConnectionsAgeMS, input.OutcomesWindowMS = 0, 0, 0, 0
	input.Endpoints = slices.Clone(req.Endpoints)
	for i := range input.Endpoints {
		ep := &input.Endpoints[i]
		ep.PriorWeight, ep.Connections, ep.Outcomes = 0, 0, abi.Outcomes{}
	}
	if !reflect.DeepEqual(p.input, &input) {
		p.input = &input
		p.generation++
	}
	req.Generation = p.generation
	reading, failedAt := e.watch.failures(req)
	due := p.called == nil || !reflect.DeepEqual(p.called, p.input) || p.requeueAt != 0 && p.requeueAt <= nowMS ||
		p.reading < failedAt && p.backoff == 0
	if !due {
		return p.err
	}
	req.State, req.EndpointStates = slices.Clone(p.state), p.states.For(req)
	resp := new(abi.Response)
	resp.Reset(len(req.Endpoints))
	e.calls[req.Pool]++
	err := e.plugin.Decide(req, resp)
	p.called, p.reading = p.input, reading
	if err == nil {
		err = p.check(e.plugin.Role(), req, resp)
	} else if fresh, err := sdk.NewNativePlugin(e.create, []byte(e.settings)); err == nil {
		e.plugin = fresh // as the proxy does, which discards the instance
	}
	if p.err = err; err != nil {
		p.backoff = min(max(time.Second, 2*p.backoff), time.Minute)
		p.requeueAt = nowMS + p.backoff.Milliseconds()
		return err
	}
	p.backoff, p.answeredAt, p.requeueAt = 0, req.Now, 0
	if resp.RequeueAfter > 0 {
		p.requeueAt = req.Now + max(resp.RequeueAfter, time.Second).Milliseconds()
	}
	p.resp, p.state, p.states = resp, resp.State, abi.StatesOf(req, resp)
	return nil
}

// check makes the weights of a response, and returns an error if there are none.
func (p *pool) check(role abi.Role, req *abi.Request, resp *abi.Response) error {
	last := *req
	last.Endpoints = slices.Clone(req.Endpoints)
	last.Apply(role, abi.AnswerOf(resp))
	parts := last.Parts(nil)
	if parts == nil {
		return errors.New("the response leaves no endpoint with capacity and a share")
	}
	p.weights = make([]uint16, len(parts))
	abi.Weights(p.weights, parts)
	return nil
}

// updateTimes updates since when endpoints are ready and terminating, in whole seconds.
func (p *pool) updateTimes(c *scenariotest.Cluster, now time.Time) {
	s := now.Unix() * 1000
	before := p.since
	p.since = map[netip.AddrPort]since{}
	for i := range c.Endpoints {
		ep := &c.Endpoints[i]
		var t since
		if ep.Ready {
			t.ready = cmp.Or(before[ep.Addr].ready, s)
		}
		if ep.Terminating {
			t.terminating = cmp.Or(before[ep.Addr].terminating, s)
		}
		p.since[ep.Addr] = t
	}
}
