package leastloaded

import le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"

// one is a load that is equal to the fair share. Loads are smoothed numbers of open connections, relative to the fair share.
const one = 4096

// average is the load of an endpoint.
type average struct {
	hash uint32 // of its address, 24 bits
	load uint16 // in 1/one
}

// state is passed from one decision to the next: 13 bytes, and 5 for each endpoint, in the order of the request. A new endpoint has the hash
// of another one once in 80,000 times; it then begins with the average of that, and those between with their fair share.
type state struct {
	stepped  int64 // when the averages last changed, Unix seconds; 0: never
	counted  int64 // when the connections were counted that changed them, Unix milliseconds
	averages []average
}

const (
	stateVersion = 1
	stateHead    = 13
	averageSize  = 5

	// maxEndpoints is how many averages fit into a state of 1024 bytes.
	maxEndpoints = 200
)

// read decodes a state. One that it cannot decode, for example of a later version, counts as none. Times after now are those of another
// clock.
func (m *state) read(b []byte, now int64) {
	m.stepped, m.counted, m.averages = 0, 0, m.averages[:0]
	if len(b) < stateHead || b[0] != stateVersion || (len(b)-stateHead)%averageSize != 0 {
		return
	}
	m.stepped, m.counted = int64(le.Uint32(b[1:])), int64(le.Uint64(b[5:]))
	if m.stepped > now || m.counted < 0 || m.counted > now*1000 {
		m.stepped, m.counted = 0, 0
	}
	for b = b[stateHead:]; len(b) > 0; b = b[averageSize:] {
		m.averages = append(m.averages, average{le.Uint32(b) & 0xFFFFFF, le.Uint16(b[3:])})
	}
}

// load returns the average of an endpoint. A new one has none, and begins with its fair share. Endpoints and averages have the same
// order, so next is where to search, and where to search for the following endpoint.
func (m *state) load(hash uint32, next int) (load uint64, isNew bool, after int) {
	for i := next; i < len(m.averages); i++ {
		if m.averages[i].hash == hash {
			return uint64(m.averages[i].load), false, i + 1
		}
	}
	return one, true, next
}

// append encodes the state.
func (m *state) append(b []byte) []byte {
	b = append(b, stateVersion)
	b = le.AppendUint32(b, uint32(m.stepped))
	b = le.AppendUint64(b, uint64(m.counted))
	for _, a := range m.averages {
		b = append(b, byte(a.hash), byte(a.hash>>8), byte(a.hash>>16), byte(a.load), byte(a.load>>8))
	}
	return b
}
