package failover

import (
	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
)

// state is passed from one decision to the next, in 9 bytes plus 4 for each group.
type state struct {
	since  int64    // Unix milliseconds since when the groups call for a return to earlier groups; 0: they do not
	shares []uint64 // of the groups, in millionths; empty: no decision yet
}

const (
	stateVersion = 1
	stateHead    = 9
)

// read decodes a state. One that it cannot decode, for example of a later version or of other groups, counts as none, as one in
// which a group that is empty now has a share.
func (m *state) read(b []byte, now weights.Groups) {
	m.since, m.shares = 0, m.shares[:0]
	if len(b) != stateHead+4*len(now) || b[0] != stateVersion {
		return
	}
	since, sum := int64(le.Uint64(b[1:])), uint64(0)
	for i := range now {
		s := uint64(le.Uint32(b[stateHead+4*i:]))
		if s > 0 && now[i].Capacity == 0 {
			m.shares = m.shares[:0]
			return
		}
		m.shares = append(m.shares, s)
		sum += s
	}
	if sum != weights.Million {
		m.shares = m.shares[:0]
		return
	}
	m.since = since
}

func (m *state) append(b []byte) []byte {
	b = append(b, stateVersion)
	b = le.AppendUint64(b, uint64(m.since))
	for _, s := range m.shares {
		b = le.AppendUint32(b, uint32(s))
	}
	return b
}

// hold replaces the shares by those of the last decision, as long as they are to stay: up to the hysteresis, and, if connections
// would return to earlier groups only, for holdSeconds. A spill to later groups does not wait. It returns the time to wait in
// milliseconds.
func (p *plugin) hold(now int64) (wait int64) {
	p.next.since = 0
	if len(p.prev.shares) > 0 {
		most, spills := uint64(0), false
		before, after := uint64(0), uint64(0) // shares of all groups up to this one
		whole := false                        // one group gets everything
		for i, s := range p.prev.shares {
			t := p.shares[i].Share
			before, after = before+s, after+t
			most = max(most, max(s, t)-min(s, t))
			spills = spills || after < before
			whole = whole || t == weights.Million
		}
		keep := most <= uint64(p.settings.HysteresisPercent)*weights.Million/100
		if !spills && (!keep || whole && most > 0) {
			since := p.prev.since
			if since <= 0 || since > now {
				since = now
			}
			if left := since + p.settings.HoldSeconds*1000 - now; left > 0 {
				p.next.since, wait, keep = since, left, true
			} else {
				keep = false
			}
		}
		if keep {
			for i, s := range p.prev.shares {
				p.shares[i].Share = s
			}
		}
	}
	p.next.shares = p.next.shares[:0]
	for i := range p.shares {
		p.next.shares = append(p.next.shares, p.shares[i].Share)
	}
	return wait
}
