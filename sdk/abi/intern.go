//go:build !wasip1

package abi

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// Limits of an interner, reported by Encoder.Full. It keeps working beyond them.
const (
	maxStrings     = 1 << 18
	maxStringBytes = 32 << 20
	recentBits     = 10
)

// interner assigns ids to strings, from 0 upwards, for the life of one guest instance.
type interner struct {
	ids   map[string]uint32
	known []known  // by id
	zones []uint16 // by id: row in the zone table of this request, or NoZone
	round uint32
	used  []uint32 // ids of this request, in order of first use
	size  int      // bytes of their texts
	bytes int      // of all texts

	// recent caches ids by a cheap hash of the text: most lookups end here without hashing the whole text and, for texts
	// of up to 16 bytes, without comparing it. Each text has two possible slots.
	recent [1 << recentBits]recent
}

// recent is a recently used text.
type recent struct {
	lo, hi uint64 // parts of text; all of it if it has at most 16 bytes
	text   string
	id     uint32
	round  uint32 // that last used it; 0: unknown
}

func (r *recent) matches(s string, lo, hi uint64) bool {
	return r.lo == lo && r.hi == hi && len(r.text) == len(s) && (len(s) <= 16 || r.text == s)
}

// known is a string with an id.
type known struct {
	text   string
	lo, hi uint64 // the first 16 bytes of text, padded with zeros
	round  uint32 // that last used it
}

// beginRequest starts a round, that is, a request.
func (t *interner) beginRequest() {
	t.used, t.size = t.used[:0], 0
	t.round++
	if t.round == 0 { // overflow: old round numbers would become ambiguous
		for i := range t.known {
			t.known[i].round = 0
		}
		clear(t.recent[:])
		t.round = 1
	}
}

// id returns the id of s and marks it as used by this round.
func (t *interner) id(s string) uint32 {
	n := len(s)
	var lo, hi uint64
	switch {
	case n > 16:
		lo, hi = load8(s[(n-8)/4:]), load8(s[n-8:]) // where names of nodes and zones differ
	case n >= 8:
		lo, hi = load8(s), load8(s[n-8:])
	case n >= 4:
		lo = uint64(load4(s)) | uint64(load4(s[n-4:]))<<32
	case n > 0:
		lo = uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16
	default:
		return NoString
	}
	at := (uint64(n) ^ lo ^ bits.RotateLeft64(hi, 29)) * goldenRatio64 >> (64 - recentBits)
	r := &t.recent[at]
	if !r.matches(s, lo, hi) {
		if r = &t.recent[at^1]; !r.matches(s, lo, hi) {
			r = t.replace(at, s, lo, hi)
		}
	}
	if r.round != t.round {
		r.round = t.round
		t.use(r.id)
	}
	return r.id
}

// replace stores a text in its first slot and moves the previous occupant to the second.
func (t *interner) replace(at uint64, s string, lo, hi uint64) *recent {
	id := t.lookup(s)
	r := &t.recent[at]
	t.recent[at^1] = *r
	*r = recent{lo: lo, hi: hi, text: t.known[id].text, id: id}
	return r
}

// use marks an id as used by this round.
func (t *interner) use(id uint32) {
	if k := &t.known[id]; k.round != t.round {
		k.round = t.round
		t.used = append(t.used, id)
		t.size += len(k.text)
	}
}

// zone returns the row of a zone in the zone table of this round.
func (t *interner) zone(id uint32) uint16 {
	if id == NoString {
		return NoZone
	}
	return t.zones[id]
}

func (t *interner) lookup(s string) uint32 {
	id, ok := t.ids[s]
	if !ok {
		id = uint32(len(t.known))
		s = strings.Clone(s) // it may be part of a large string
		if t.ids == nil {
			t.ids = map[string]uint32{}
		}
		t.ids[s] = id
		var head [16]byte
		copy(head[:], s)
		le := binary.LittleEndian
		t.known = append(t.known, known{text: s, lo: le.Uint64(head[:8]), hi: le.Uint64(head[8:])})
		t.zones = append(t.zones, NoZone)
		t.bytes += len(s)
	}
	return id
}

// goldenRatio64 is 2⁶⁴ divided by the golden ratio, the multiplier of Fibonacci hashing.
const goldenRatio64 = 0x9E3779B97F4A7C15

func load8(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func load4(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}
