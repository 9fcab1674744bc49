package tiers

import (
	"slices"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/sdk"
)

// State is passed from one decision to the next.
type State struct {
	Mode      uint8    // the plugin's
	ModeSince int64    // Unix milliseconds since when the endpoints call for another mode; 0: they do not
	Since     int64    // since when they call for other targets; 0: they do not
	Names     []uint32 // hashes of the names of tiers; a collision only makes targets change at another time
	Target    []uint32 // of Tiers; empty: none
}

const (
	stateVersion = 2
	stateHead    = 20
)

// Read decodes a state. One that it cannot decode, for example of a later version, counts as none.
func (s *State) Read(b []byte) {
	*s = State{Names: s.Names[:0], Target: s.Target[:0]}
	if len(b) < stateHead || len(b)%4 != 0 || b[0] != stateVersion {
		return
	}
	names, words := int(le.Uint16(b[2:])), (len(b)-stateHead)/4
	if words > 0 && (names == 0 || words%names != 0) || names > words {
		return
	}
	s.Mode, s.ModeSince, s.Since = b[1], int64(le.Uint64(b[4:])), int64(le.Uint64(b[12:]))
	for b = b[stateHead:]; len(b) > 0; b = b[4:] {
		if len(s.Names) < names {
			s.Names = append(s.Names, le.Uint32(b))
		} else {
			s.Target = append(s.Target, le.Uint32(b))
		}
	}
}

// Append encodes a state. Targets that do not fit are left out: they will not be held.
func (s *State) Append(b []byte) []byte {
	names, target := s.Names, s.Target
	if len(target) == 0 || stateHead+4*(len(names)+len(target)) > sdk.MaxStateLen {
		names, target = nil, nil
	}
	b = le.AppendUint16(append(b, stateVersion, s.Mode), uint16(len(names)))
	b = le.AppendUint64(le.AppendUint64(b, uint64(s.ModeSince)), uint64(s.Since))
	for _, n := range names {
		b = le.AppendUint32(b, n)
	}
	for _, n := range target {
		b = le.AppendUint32(b, n)
	}
	return b
}

// Rule says when targets change.
type Rule struct {
	Hysteresis int64 // points, in percent: a larger change takes place at once
	Hold       int64 // milliseconds: another one when it has been due for this long
	Ordered    bool  // a larger change also waits, unless it moves connections to later tiers
}

// Follow replaces the targets by those of the last decision as long as they stay, and sets Since and Target of the state. It
// returns the time to wait in milliseconds, 0 if nothing is to change.
func (t *Tiers) Follow(s *State, names []uint32, now int64, r Rule) (wait int64) {
	since := s.Since
	s.Since = 0
	if t.before(s, names) {
		if most, later := t.change(s.Target); most > 0 && (most <= r.Hysteresis*sdk.One/100 || r.Ordered && !later) {
			if since <= 0 || since > now {
				since = now
			}
			if wait = since + r.Hold - now; wait > 0 {
				s.Since = since
				copy(t.Target, s.Target)
			}
		}
	}
	s.Names = append(s.Names[:0], names...)
	s.Target = append(s.Target[:0], t.Target...)
	return max(wait, 0)
}

// before arranges the last targets as those of this decision. It reports whether they can stay: no tier has come, or gone with
// connections. A group without targets now keeps those that it had.
func (t *Tiers) before(s *State, names []uint32) bool {
	groups := len(t.Load) / t.Count
	if len(s.Target) == 0 || len(s.Target) != groups*len(s.Names) {
		return false
	}
	last := make([]uint32, len(t.Target))
	for g := range groups {
		load, target := t.Group(g)
		old := s.Target[g*len(s.Names):][:len(s.Names)]
		none := !slices.ContainsFunc(target, func(n uint32) bool { return n > 0 })
		had := slices.ContainsFunc(old, func(n uint32) bool { return n > 0 })
		if !none && !had {
			return false
		}
		for i, name := range s.Names {
			at := slices.Index(names, name)
			switch {
			case at >= 0:
				last[g*t.Count+at] = old[i]
			case old[i] > 0:
				return false
			}
			if at >= 0 && old[i] > 0 && load[at] == 0 && !none {
				return false
			}
		}
		for at, name := range names {
			if load[at] > 0 && !slices.Contains(s.Names, name) {
				return false
			}
		}
	}
	s.Target = append(s.Target[:0], last...)
	return true
}

// change returns the largest change of a target since the last ones, and whether connections move to later tiers. A group without
// targets gets the last ones, for the time when it has some again, and keeps its shares.
func (t *Tiers) change(last []uint32) (most int64, later bool) {
	for g := range len(t.Load) / t.Count {
		load, target := t.Group(g)
		none := !slices.ContainsFunc(target, func(n uint32) bool { return n > 0 })
		if none {
			copy(target, last[g*t.Count:])
			clear(load)
			continue
		}
		before, after := int64(0), int64(0) // of all tiers up to this one
		for i := range target {
			was, is := int64(last[g*t.Count+i]), int64(target[i])
			before, after = before+was, after+is
			most = max(most, max(was, is)-min(was, is))
			later = later || after < before
		}
	}
	return most, later
}
