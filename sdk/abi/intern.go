package abi

import (
	"math/bits"
	"strings"
)

// Limits of an intern table. A table that reaches one goes on working, and says so by Full.
const (
	maxStrings     = 1 << 18
	maxStringBytes = 32 << 20
	recentBits     = 10
)

// interner gives strings ids, 0 upwards, for the life of one guest instance.
type interner struct {
	ids   map[string]uint32
	texts []string // by id
	stamp []uint32 // by id: the last round that used it
	zones []uint16 // by id: its row in the zone table of this round, NoZone
	round uint32
	used  []uint32 // ids of this round, in the order of first use
	bytes int      // of all texts

	// recent is a cache of ids by a cheap mix of the text: most look-ups end here without a real hash of it.
	recent [1 << recentBits]struct {
		text  string
		id    uint32
		round uint32 // the last one that used it; 0: unknown
	}
}

// begin starts a round: a request.
func (t *interner) begin() {
	t.used = t.used[:0]
	t.round++
	if t.round == 0 { // wrapped: every stamp could be mistaken
		clear(t.stamp)
		clear(t.recent[:])
		t.round = 1
	}
}

// id gives the id of s and notes that this round uses it.
func (t *interner) id(s string) uint32 {
	if s == "" {
		return NoString
	}
	r := &t.recent[mix(s)>>(64-recentBits)]
	if r.text != s {
		r.id = t.lookup(s)
		r.text, r.round = t.texts[r.id], 0
	}
	if r.round != t.round {
		r.round = t.round
		if t.stamp[r.id] != t.round {
			t.stamp[r.id] = t.round
			t.used = append(t.used, r.id)
		}
	}
	return r.id
}

// zone gives the row of a zone in this round's zone table.
func (t *interner) zone(id uint32) uint16 {
	if id == NoString {
		return NoZone
	}
	return t.zones[id]
}

func (t *interner) lookup(s string) uint32 {
	id, ok := t.ids[s]
	if !ok {
		id = uint32(len(t.texts))
		s = strings.Clone(s) // it may be a piece of something large
		if t.ids == nil {
			t.ids = map[string]uint32{}
		}
		t.ids[s] = id
		t.texts = append(t.texts, s)
		t.stamp = append(t.stamp, 0)
		t.zones = append(t.zones, NoZone)
		t.bytes += len(s)
	}
	return id
}

// mix makes a number of the length of s and 16 of its bytes, from the end and from a quarter on: where the names of nodes
// and zones differ.
func mix(s string) uint64 {
	n := len(s)
	if n < 8 {
		return mixShort(s)
	}
	return (uint64(n) ^ load(s[(n-8)/4:]) ^ bits.RotateLeft64(load(s[n-8:]), 29)) * odd
}

// odd is 2⁶⁴ divided by the golden ratio: a product with it spreads to the upper bits.
const odd = 0x9E3779B97F4A7C15

func mixShort(s string) uint64 {
	h := uint64(len(s))
	for i := range len(s) {
		h = h<<8 | uint64(s[i])
	}
	return h * odd
}

func load(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
