package rebalance

import (
	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/sdk"
)

// state is passed from one decision to the next: 22 bytes and, during a round, one for each endpoint of the request.
type state struct {
	// During a round, until is its end. Otherwise no round begins before.
	round bool
	until int64 // Unix seconds; 0: nothing is to be done
	// after is when the connections must have been counted that a round relies on, or later, Unix milliseconds: when endpoints
	// became ready, and when the last round ended.
	after int64
	// pool is a hash of the addresses of all endpoints, to which the values belong.
	pool   uint32
	values []byte // permille of each endpoint that are shed, in steps
}

const (
	stateVersion = 1
	stateHead    = 22

	// maxEndpoints is how many values fit into a state of 1024 bytes.
	maxEndpoints = sdk.MaxStateLen - stateHead
	// step is the unit of values, permille.
	step = 4
)

// read decodes a state. One that it cannot decode, for example of a later version, counts as none. latest is the latest time that
// it can have, Unix seconds: the settings or the clock have changed.
func (m *state) read(b []byte, latest int64) {
	*m = state{values: m.values[:0]}
	if len(b) < stateHead || b[0] != stateVersion {
		return
	}
	until, after := int64(le.Uint64(b[2:])), int64(le.Uint64(b[10:]))
	if until <= 0 || until > latest || after < 0 || after > latest*1000 {
		return
	}
	m.round, m.until, m.after, m.pool = b[1] == 1, until, after, le.Uint32(b[18:])
	m.values = append(m.values, b[stateHead:]...)
}

func (m *state) append(b []byte) []byte {
	round := byte(0)
	if m.round {
		round = 1
	}
	b = append(b, stateVersion, round)
	b = le.AppendUint64(le.AppendUint64(b, uint64(m.until)), uint64(m.after))
	b = le.AppendUint32(b, m.pool)
	if m.round {
		b = append(b, m.values...)
	}
	return b
}
