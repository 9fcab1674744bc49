package zonespill

import (
	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Modes. modeNone: no decision yet.
const (
	modeNone = iota
	modeActive
	modeDefault
)

func modeOf(enough bool) uint8 {
	if enough {
		return modeActive
	}
	return modeDefault
}

// state is passed from one decision to the next, in 14 bytes plus 6 for each zone with weight. Zones are identified by a
// hash of their name; a collision makes the multipliers wrong, which is detected, and they are computed again.
type state struct {
	mode        uint8
	since       int64  // Unix milliseconds since when the endpoints call for the other mode; 0: they do not
	nodeZone    uint32 // this node's zone
	multipliers []zoneMultiplier
}

type zoneMultiplier struct {
	zone       uint32
	multiplier uint16
}

const (
	stateVersion = 1
	stateHead    = 14
	stateZone    = 6
)

func (m *state) reset() { *m = state{multipliers: m.multipliers[:0]} }

// read decodes a state. One that it cannot decode, for example of a later version, counts as none.
func (m *state) read(b []byte) {
	m.reset()
	if len(b) < stateHead || b[0] != stateVersion || b[1] > modeDefault || (len(b)-stateHead)%stateZone != 0 {
		return
	}
	m.mode = b[1]
	m.since = int64(le.Uint64(b[2:]))
	m.nodeZone = le.Uint32(b[10:])
	for b = b[stateHead:]; len(b) > 0; b = b[stateZone:] {
		m.multipliers = append(m.multipliers, zoneMultiplier{le.Uint32(b), le.Uint16(b[4:])})
	}
}

func (m *state) append(b []byte) []byte {
	b = append(b, stateVersion, m.mode)
	b = le.AppendUint64(b, uint64(m.since))
	b = le.AppendUint32(b, m.nodeZone)
	for _, t := range m.multipliers {
		b = le.AppendUint32(b, t.zone)
		b = le.AppendUint16(b, t.multiplier)
	}
	return b
}

// reuseMultipliers uses the multipliers of the last decision and reports whether they are still valid: every zone has one, and
// no share deviates by more than the hysteresis. Added and removed endpoints then change no other weight.
func (p *plugin) reuseMultipliers(req *sdk.Request) bool {
	if len(p.prev.multipliers) == 0 || p.prev.nodeZone != p.hash(req, p.nodeZone) {
		return false
	}
	total, most := uint64(0), uint64(0)
	for i := range p.groups {
		g := &p.groups[i]
		g.Multiplier = 0
		if g.Capacity == 0 {
			continue
		}
		n, ok := p.prev.find(p.hash(req, i))
		if !ok {
			return false
		}
		g.Multiplier = n
		total += n * g.Capacity
		most = max(most, n)
	}
	if total == 0 || most*p.largest > weights.MaxWeight || total > uint64(p.settings.MaxTotal) {
		return false
	}
	if p.groups.MaxError(total) > uint64(p.settings.HysteresisPercent)*million/100 {
		return false
	}
	p.next.nodeZone, p.next.multipliers = p.prev.nodeZone, append(p.next.multipliers, p.prev.multipliers...)
	return true
}

func (m *state) find(zone uint32) (uint64, bool) {
	for _, t := range m.multipliers {
		if t.zone == zone {
			return uint64(t.multiplier), true
		}
	}
	return 0, false
}

// saveMultipliers saves the multipliers of this decision, if all fit into the state.
func (p *plugin) saveMultipliers(req *sdk.Request) {
	p.next.nodeZone = p.hash(req, p.nodeZone)
	for i := range p.groups {
		if g := &p.groups[i]; g.Capacity > 0 {
			p.next.multipliers = append(p.next.multipliers, zoneMultiplier{p.hash(req, i), uint16(g.Multiplier)})
		}
	}
	if stateHead+len(p.next.multipliers)*stateZone > sdk.MaxStateLen {
		p.next.multipliers = p.next.multipliers[:0]
	}
}

// zoneCache caches the hash of the name and the last reason of a row of the zone table, which seldom changes.
type zoneCache struct {
	id   sdk.StringID
	hash uint32
	key  textKey
	text string

	demandOf    sdk.StringID // demand is that of this zone, if it is known
	demandKnown bool
	demand      uint64 // by the settings
}

// hash returns the FNV-1a hash of the name of zone i.
func (p *plugin) hash(req *sdk.Request, i int) uint32 {
	n := p.zoneCache(i)
	if id := p.zones[i].id; n.id != id {
		n.id, n.hash = id, weights.FNV(req.Text(id))
	}
	return n.hash
}

func (p *plugin) zoneCache(i int) *zoneCache {
	for len(p.zoneCaches) <= i {
		p.zoneCaches = append(p.zoneCaches, zoneCache{id: sdk.NoString})
	}
	return &p.zoneCaches[i]
}
