package leastloaded

import le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"

// state is passed from one decision to the next, beside the averages of the endpoints.
type state struct {
	stepped int64 // when the averages last changed, Unix seconds; 0: never
	counted int64 // when the connections were counted that changed them, Unix milliseconds
}

const (
	stateVersion = 2
	stateSize    = 13
)

// read decodes a state. One that it cannot decode, for example of a later version, counts as none. Times after now are those of
// another clock.
func (m *state) read(b []byte, now int64) {
	*m = state{}
	if len(b) != stateSize || b[0] != stateVersion {
		return
	}
	m.stepped, m.counted = int64(le.Uint32(b[1:])), int64(le.Uint64(b[5:]))
	if m.stepped > now || m.counted < 0 || m.counted > now*1000 {
		*m = state{}
	}
}

// append encodes the state.
func (m *state) append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint32(append(b, stateVersion), uint32(m.stepped)), uint64(m.counted))
}
