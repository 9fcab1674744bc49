package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// checkpointVersion changes when an older sluice could misread a checkpoint. A checkpoint of another version is refused.
const checkpointVersion = 1

// checkpoint is the state that must survive a restart: since when endpoints are ready or terminating, the last good decisions,
// and the plugins' own state. Its JSON form is private to sluice.
type checkpoint struct {
	Version int         `json:"version"`
	Epoch   Epoch       `json:"epoch"`
	Pools   []savedPool `json:"pools"`
	// Readiness is of the Service ports whose policy has Panic.
	Readiness []savedReadiness `json:"readiness,omitempty"`
	// Settings are the last good settings of Services, at most maxSavedSettings bytes of them.
	Settings []savedSettings `json:"settings,omitempty"`
	Guards   []savedGuard    `json:"guards,omitempty"`
	// Choices are the policies that the annotations of Services have chosen last.
	Choices []savedChoice `json:"choices,omitempty"`
	Node    *savedNode    `json:"node,omitempty"`
}

// savedNode is Evaluator.Node.
type savedNode struct {
	Name      string            `json:"name"`
	Zone      string            `json:"zone,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Addresses []netip.Addr      `json:"addresses,omitempty"`
	PodCIDRs  []netip.Prefix    `json:"podCIDRs,omitempty"`
}

func saveNode(n *model.Node) *savedNode {
	if n == nil {
		return nil
	}
	return &savedNode{n.Name, n.Zone, n.Labels, n.Addresses, n.PodCIDRs}
}

func (s *savedNode) restore() *model.Node {
	bad := func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() }
	return &model.Node{Name: s.Name, Zone: s.Zone, Labels: s.Labels, Addresses: slices.DeleteFunc(s.Addresses, bad),
		PodCIDRs: slices.DeleteFunc(s.PodCIDRs, func(p netip.Prefix) bool { return bad(p.Addr()) })}
}

// savedChoice is the policy that the annotation of a Service has chosen last.
type savedChoice struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Policy    string `json:"policy"`
}

// savedSettings are the last good settings of a Service.
type savedSettings struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Text      string `json:"text"`
}

func (s *savedSettings) name() model.Name { return model.Name{Namespace: s.Namespace, Name: s.Service} }

// maxSavedSettings bounds the last good settings in a checkpoint, in bytes. Those of Services whose annotation is refused come
// first: the others are tried again after a restart.
const maxSavedSettings = 16 << 20

// maxSavedEndpointStates bounds the states of endpoints in a checkpoint, of all plugins: at most 100 bytes each, and a larger
// checkpoint could not be read. States of further Service ports, in the order of names, begin anew after a restart.
const maxSavedEndpointStates = 1 << 20

// Epoch relates the times of a clock to the machine's. The clock advances with the time since the boot.
type Epoch struct {
	Boot string `json:"boot"` // differs between boots; "" if unknown
	At   int64  `json:"at"`   // the clock's time at the boot, Unix milliseconds
}

// maxTime is the last millisecond of the year 9999.
const maxTime = 253402300799999

type savedPool struct {
	Namespace  string          `json:"namespace"`
	Service    string          `json:"service"`
	Port       string          `json:"port,omitempty"`
	Protocol   model.Protocol  `json:"protocol"`
	Family     model.Family    `json:"family"`
	Pool       uint8           `json:"pool"`
	Policy     string          `json:"policy"`
	Generation uint64          `json:"generation"`
	Balance    uint8           `json:"balance,omitempty"`
	HasGood    bool            `json:"hasGood,omitempty"`
	Endpoints  []savedEndpoint `json:"endpoints"`
	Steps      []savedStep     `json:"steps,omitempty"`
	Shadow     *savedShadow    `json:"shadow,omitempty"`
	Before     *savedFormer    `json:"before,omitempty"`
}

// savedFormer is the last decision of the policy before one with a guard.
type savedFormer struct {
	Policy    string          `json:"policy"`
	Balance   uint8           `json:"balance,omitempty"`
	Endpoints []savedEndpoint `json:"endpoints"` // without times
}

// savedShadow is the shadow of a pool.
type savedShadow struct {
	Generation uint64          `json:"generation"`
	HasGood    bool            `json:"hasGood,omitempty"`
	Endpoints  []savedEndpoint `json:"endpoints,omitempty"` // without times
	Steps      []savedStep     `json:"steps,omitempty"`
}

type savedEndpoint struct {
	Addr             netip.AddrPort `json:"addr"`
	ReadySince       int64          `json:"ready,omitempty"`
	TerminatingSince int64          `json:"terminating,omitempty"`
	Good             *savedRow      `json:"good,omitempty"`
}

type savedRow struct {
	Conditions uint32 `json:"conditions"`
	Weight     uint16 `json:"weight"`
	Keep       bool   `json:"keep,omitempty"`
	ResetAt    int64  `json:"resetAt,omitempty"`
	Shed       uint16 `json:"shed,omitempty"` // permille
	ShedAt     int64  `json:"shedAt,omitempty"`
}

// Save returns the state that must survive a restart, for Restore. epoch is that of the clock of Decide. Equal state returns
// equal bytes.
func (e *Evaluator) Save(epoch Epoch) ([]byte, error) {
	out := checkpoint{Version: checkpointVersion, Epoch: epoch, Pools: []savedPool{}}
	room := stateRoom{left: maxSavedEndpointStates}
	for _, key := range slices.SortedFunc(maps.Keys(e.pools), PoolKey.compare) {
		out.Pools = append(out.Pools, e.pools[key].save(key, &room))
	}
	for key, r := range e.readiness {
		if saved, ok := r.save(key); ok {
			out.Readiness = append(out.Readiness, saved)
		}
	}
	e.OmittedStates = room.omitted
	slices.SortFunc(out.Readiness, func(a, b savedReadiness) int { return a.key().compare(b.key()) })
	out.Settings, out.Guards = e.saveSettings(), e.saveGuards()
	for _, name := range slices.SortedFunc(maps.Keys(e.choices), model.Name.Compare) {
		out.Choices = append(out.Choices, savedChoice{name.Namespace, name.Name, e.choices[name]})
	}
	out.Node = saveNode(e.Node)
	return json.Marshal(out)
}

func (o *serviceSettings) saveSettings() (out []savedSettings) {
	left := maxSavedSettings
	names := slices.SortedFunc(maps.Keys(o.settings), model.Name.Compare)
	for _, refused := range []bool{true, false} {
		for _, name := range names {
			s := o.settings[name]
			if s.good == "" || (s.err != nil) != refused || len(s.good) > left {
				continue
			}
			left -= len(s.good)
			out = append(out, savedSettings{name.Namespace, name.Name, s.good})
		}
	}
	slices.SortFunc(out, func(a, b savedSettings) int { return a.name().Compare(b.name()) })
	return out
}

// Restore restores the pools in what Save returned that have no state yet. After an error nothing is restored.
//
// fresh is the epoch of a clock that starts now, with the wall time. If the checkpoint was written since the same boot, its times
// are moved to that clock by whole seconds, and Decide continues with the epoch that Restore returns, so that the time since a
// restored time is exact even if the wall clock was set meanwhile. Otherwise times are dropped: nothing but the wall clock
// knows for how long the machine was off, and a wrong one would end drains early.
func (e *Evaluator) Restore(text []byte, fresh Epoch) (epoch Epoch, sameBoot bool, err error) {
	var in checkpoint
	if err := json.Unmarshal(text, &in); err != nil {
		return fresh, false, fmt.Errorf("checkpoint: %w", err)
	}
	if in.Version != checkpointVersion {
		return fresh, false, fmt.Errorf("checkpoint: version %d, want %d", in.Version, checkpointVersion)
	}
	if in.Epoch.At < -maxTime || in.Epoch.At > maxTime {
		return fresh, false, fmt.Errorf("checkpoint: epoch: %d ms since 1970: not a time until the year 9999", in.Epoch.At)
	}
	move := func(int64) int64 { return 0 }
	if epoch = fresh; fresh.Boot != "" && in.Epoch.Boot == fresh.Boot {
		by := int64(math.Round(float64(fresh.At-in.Epoch.At)/1000)) * 1000
		epoch.At, sameBoot = in.Epoch.At+by, true
		move = func(ms int64) int64 {
			if ms == 0 {
				return 0
			}
			return max(1, min(ms, maxTime)+by)
		}
	}
	for i := range in.Pools {
		s := &in.Pools[i]
		if e.pools[s.key()] == nil {
			s.moveTimes(move)
			e.pools[s.key()] = s.restore()
		}
	}
	for i := range in.Readiness {
		s := &in.Readiness[i]
		if e.readiness[s.key()] == nil {
			e.readiness[s.key()] = s.restore(move)
		}
	}
	for _, s := range in.Settings {
		if e.settings[s.name()] == nil && s.Text != "" {
			e.settings[s.name()] = &ownSettings{good: s.Text}
		}
	}
	for i := range in.Guards {
		if g := &in.Guards[i]; e.Guards[g.Policy] == nil && g.valid() {
			e.Guards[g.Policy] = g.restore(move)
		}
	}
	for _, s := range in.Choices {
		if name := (model.Name{Namespace: s.Namespace, Name: s.Service}); e.choices[name] == "" {
			e.choices[name] = s.Policy
		}
	}
	if in.Node != nil && e.Node == nil {
		e.Node = in.Node.restore()
	}
	return epoch, sameBoot, nil
}

// moveTimes replaces all times; 0 is none.
func (s *savedPool) moveTimes(move func(ms int64) int64) {
	moveTimes(s.Endpoints, move)
	if s.Shadow != nil {
		moveTimes(s.Shadow.Endpoints, move)
	}
	if s.Before != nil {
		moveTimes(s.Before.Endpoints, move)
	}
}

func moveTimes(list []savedEndpoint, move func(ms int64) int64) {
	for i := range list {
		e := &list[i]
		e.ReadySince, e.TerminatingSince = move(e.ReadySince), move(e.TerminatingSince)
		if e.Good != nil {
			e.Good.ResetAt, e.Good.ShedAt = move(e.Good.ResetAt), move(e.Good.ShedAt)
		}
	}
}

// Prune deletes the state of the Services for which keep returns false, for instance of those that were deleted between Save and
// Restore.
func (e *Evaluator) Prune(keep func(service model.Name) bool) {
	maps.DeleteFunc(e.pools, func(k PoolKey, _ *poolState) bool { return !keep(k.Port.Service) })
	maps.DeleteFunc(e.readiness, func(k readinessKey, _ *readiness) bool { return !keep(k.port.Service) })
	maps.DeleteFunc(e.settings, func(name model.Name, _ *ownSettings) bool { return !keep(name) })
	maps.DeleteFunc(e.choices, func(name model.Name, _ string) bool { return !keep(name) })
}

// save returns the state of a pool. room is for how many states of endpoints there is room.
func (m *poolState) save(key PoolKey, room *stateRoom) savedPool {
	out := savedPool{
		Namespace: key.Port.Service.Namespace, Service: key.Port.Service.Name, Port: key.Port.Port,
		Protocol: key.Port.Protocol, Family: key.Family, Pool: key.Pool,
		Policy: m.name, Generation: m.enforced.generation, HasGood: m.enforced.lastGood != nil, Steps: m.enforced.saveWithin(room),
	}
	if out.HasGood {
		out.Balance = m.enforced.lastGood.balance
	}
	rows := m.enforced.lastGood.save()
	for i, t := range m.times.times {
		addr := m.times.addrs.At(i)
		out.Endpoints = append(out.Endpoints, savedEndpoint{addr, milliseconds(t.ready), milliseconds(t.terminating), rows[addr]})
		delete(rows, addr)
	}
	out.Endpoints = appendSaved(out.Endpoints, rows)
	if g := m.before.good; g != nil {
		out.Before = &savedFormer{m.before.policy, g.balance, appendSaved(nil, g.save())}
	}
	if c := m.shadow; c != nil {
		out.Shadow = &savedShadow{
			Generation: c.generation, HasGood: c.lastGood != nil, Endpoints: appendSaved(nil, c.lastGood.save()), Steps: c.saveWithin(room),
		}
	}
	return out
}

// save returns the answer by endpoint. g may be nil.
func (g *lastGood) save() map[netip.AddrPort]*savedRow {
	rows := map[netip.AddrPort]*savedRow{}
	if g == nil {
		return rows
	}
	for j, r := range g.rows {
		shed := g.shed(j)
		rows[g.addrs.At(j)] = &savedRow{uint32(r.conditions), r.weight, r.keepDraining, g.resetAt(j), shed.Permille, shed.At}
	}
	return rows
}

// appendSaved appends endpoints without times to a list, and sorts it.
func appendSaved(list []savedEndpoint, rows map[netip.AddrPort]*savedRow) []savedEndpoint {
	for addr, r := range rows {
		list = append(list, savedEndpoint{Addr: addr, Good: r})
	}
	slices.SortFunc(list, func(a, b savedEndpoint) int { return a.Addr.Compare(b.Addr) })
	return list
}

func (s *savedPool) key() PoolKey {
	return PoolKey{model.PortName{
		Service: model.Name{Namespace: s.Namespace, Name: s.Service}, Port: s.Port, Protocol: s.Protocol,
	}, s.Family, s.Pool}
}

func (s *savedPool) restore() *poolState {
	m := &poolState{name: s.Policy, enforced: chain{generation: s.Generation, saved: s.Steps, lastGood: restoreGood(s.HasGood, s.Endpoints)}}
	if s.HasGood {
		m.enforced.lastGood.balance = s.Balance
	}
	if b := s.Before; b != nil {
		m.before = formerly{b.Policy, restoreGood(true, b.Endpoints)}
		m.before.good.balance = b.Balance
	}
	if c := s.Shadow; c != nil {
		m.shadow = &chain{shadow: true, generation: c.Generation, saved: c.Steps, lastGood: restoreGood(c.HasGood, c.Endpoints)}
	}
	var seen []netip.AddrPort
	for _, e := range s.Endpoints { // restoreGood has sorted them
		if e.ReadySince != 0 || e.TerminatingSince != 0 {
			seen = append(seen, e.Addr)
			m.times.times = append(m.times.times, timestamps{seconds(e.ReadySince), seconds(e.TerminatingSince)})
		}
	}
	m.times.addrs = packed(seen)
	return m
}

// restoreGood sorts endpoints, and returns the last good decision about them, nil if there is none.
func restoreGood(has bool, list []savedEndpoint) *lastGood {
	slices.SortFunc(list, func(a, b savedEndpoint) int { return a.Addr.Compare(b.Addr) })
	if !has {
		return nil
	}
	g := &lastGood{}
	var known []netip.AddrPort
	var resets []int64
	var sheds []Shed
	for _, e := range list {
		if r := e.Good; r != nil {
			known, resets = append(known, e.Addr), append(resets, r.ResetAt)
			sheds = append(sheds, Shed{At: r.ShedAt, Permille: min(r.Shed, abi.MaxShedPermille)})
			g.rows = append(g.rows, row{r.Weight, uint8(r.Conditions & lifecycleBits), r.Keep})
			g.hasDraining = g.hasDraining || r.Keep
		}
	}
	g.addrs = packed(known)
	for j, at := range resets {
		g.setReset(j, at)
		g.setShed(j, sheds[j])
	}
	return g
}

func packed(list []netip.AddrPort) model.AddrList {
	return model.PackAddrs(len(list), func(i int) netip.AddrPort { return list[i] })
}

func (k PoolKey) compare(l PoolKey) int {
	if c := k.Port.Compare(l.Port); c != 0 {
		return c
	}
	return int(k.Family)*2 + int(k.Pool) - int(l.Family)*2 - int(l.Pool)
}
