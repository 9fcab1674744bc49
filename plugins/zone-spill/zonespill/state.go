package zonespill

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/sluice-proxy/sluice/sdk"
)

// What a plugin was doing. modeNone: it has not been asked yet.
const (
	modeNone = iota
	modeActs
	modeKeeps
)

func modeOf(enough bool) uint8 {
	if enough {
		return modeActs
	}
	return modeKeeps
}

// memory is what a decision hands to the next one: as state, 14 bytes and 6 for each zone that has weight. Zones are
// known by a hash of their name; were two to clash, their numbers would be found to be off and made anew.
type memory struct {
	mode  uint8
	since int64  // Unix milliseconds since when the endpoints ask for the other mode; 0: they do not
	mine  uint32 // this node's zone
	times []zoneTimes
}

type zoneTimes struct {
	zone  uint32
	times uint16
}

const (
	stateVersion = 1
	stateHead    = 14
	stateZone    = 6
)

func (m *memory) reset() { *m = memory{times: m.times[:0]} }

// read takes a state in. One that it cannot read, as of a later version, counts as none.
func (m *memory) read(b []byte) {
	m.reset()
	if len(b) < stateHead || b[0] != stateVersion || b[1] > modeKeeps || (len(b)-stateHead)%stateZone != 0 {
		return
	}
	m.mode = b[1]
	m.since = int64(binary.LittleEndian.Uint64(b[2:]))
	m.mine = binary.LittleEndian.Uint32(b[10:])
	for b = b[stateHead:]; len(b) > 0; b = b[stateZone:] {
		m.times = append(m.times, zoneTimes{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:])})
	}
}

func (m *memory) append(b []byte) []byte {
	b = append(b, stateVersion, m.mode)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.since))
	b = binary.LittleEndian.AppendUint32(b, m.mine)
	for _, t := range m.times {
		b = binary.LittleEndian.AppendUint32(b, t.zone)
		b = binary.LittleEndian.AppendUint16(b, t.times)
	}
	return b
}

// remembered takes the multipliers of the last decision, and tells whether they will do: every zone has one, and no
// share is off by more than the hysteresis. Endpoints that come and go then change nobody else's weight.
func (p *plugin) remembered(req *sdk.Request) bool {
	if len(p.was.times) == 0 || p.was.mine != p.hash(req, p.mine) {
		return false
	}
	total, most := uint64(0), uint64(0)
	for i := range p.zones {
		z := &p.zones[i]
		z.times = 0
		if z.capacity == 0 {
			continue
		}
		n, ok := p.was.find(p.hash(req, i))
		if !ok {
			return false
		}
		z.times = n
		total += n * z.capacity
		most = max(most, n)
	}
	if total == 0 || most*p.largest > maxWeight || total > uint64(p.settings.MaxTotal) {
		return false
	}
	if p.off(total) > uint64(p.settings.HysteresisPercent)*whole/100 {
		return false
	}
	p.is.mine, p.is.times = p.was.mine, append(p.is.times, p.was.times...)
	return true
}

func (m *memory) find(zone uint32) (uint64, bool) {
	for _, t := range m.times {
		if t.zone == zone {
			return uint64(t.times), true
		}
	}
	return 0, false
}

// memorize notes the multipliers of this decision, if there is room for all.
func (p *plugin) memorize(req *sdk.Request) {
	p.is.mine = p.hash(req, p.mine)
	for i := range p.zones {
		if z := &p.zones[i]; z.capacity > 0 {
			p.is.times = append(p.is.times, zoneTimes{p.hash(req, i), uint16(z.times)})
		}
	}
	if stateHead+len(p.is.times)*stateZone > sdk.MaxStateLen {
		p.is.times = p.is.times[:0]
	}
}

// named is what is kept for a row of the zone table, which seldom changes: its name's hash and the text it had last.
type named struct {
	id   sdk.StringID
	hash uint32
	key  textKey
	text string
}

// hash gives the FNV-1a hash of the name of the zone at row i.
func (p *plugin) hash(req *sdk.Request, i int) uint32 {
	n := p.name(i)
	if id := p.zones[i].id; n.id != id {
		h := fnv.New32a()
		h.Write([]byte(req.Text(id)))
		n.id, n.hash = id, h.Sum32()
	}
	return n.hash
}

func (p *plugin) name(i int) *named {
	for len(p.names) <= i {
		p.names = append(p.names, named{id: sdk.NoString})
	}
	return &p.names[i]
}
