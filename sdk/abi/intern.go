package abi

import (
	"strings"
	"unsafe"
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
	round uint32
	used  []uint32 // ids of this round, in the order of first use
	bytes int      // of all texts

	// recent maps a string's address to its id. The strings of a cluster's state are the same objects from call to
	// call, so most look-ups end here without hashing the text. It holds the strings, so an address stays theirs.
	recent [1 << recentBits]struct {
		text string
		id   uint32
	}
}

// begin starts a round: a request.
func (t *interner) begin() {
	t.used = t.used[:0]
	t.round++
	if t.round == 0 { // wrapped: every stamp could be mistaken
		clear(t.stamp)
		t.round = 1
	}
}

// id gives the id of s and notes that this round uses it.
func (t *interner) id(s string) uint32 {
	if s == "" {
		return NoString
	}
	at := uint64(uintptr(unsafe.Pointer(unsafe.StringData(s)))) * 0x9E3779B97F4A7C15 >> (64 - recentBits)
	r := &t.recent[at]
	if len(r.text) != len(s) || r.text != s {
		r.text, r.id = s, t.lookup(s)
	}
	if t.stamp[r.id] != t.round {
		t.stamp[r.id] = t.round
		t.used = append(t.used, r.id)
	}
	return r.id
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
		t.bytes += len(s)
	}
	return id
}
