package outlier

import (
	"cmp"
	"slices"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/sdk"
)

// ejection is the back-off of an endpoint that has been ejected. It stays for some time after the endpoint has returned.
type ejection struct {
	index  int   // of the endpoint in the request
	until  int64 // Unix seconds
	times  int64 // how often it has been ejected in the end
	byNode bool  // because its node failed
	stage  int64 // of its trial, see plugin.part
}

// watch is the window of an endpoint with failed connections. Counts are totals of the node, modulo 2³².
type watch struct {
	index                int
	start                int64  // Unix seconds
	fromAnswered         uint32 // at the start of the window
	fromFailed           uint32
	answered, failed     uint32 // in the last request
	streak               uint8  // readings with failures, and without an answer since the first of them
	found                bool   // it goes on
	inAnswered, inFailed uint32 // in the window
	relapse              bool   // the stage of a trial ends, and too many connections have failed
}

// state is passed from one decision to the next with the endpoints. Both are sorted by index.
type state struct {
	ejections []ejection
	watches   []watch
	buf       [stateSize]byte
}

// The state of an endpoint: version, ejection, watch. Without an ejection or watch, its bytes are 0.
const (
	stateVersion = 1
	ejectionAt   = 1
	watchAt      = ejectionAt + 6
	stateSize    = watchAt + 21

	maxTimes  = 127
	maxStage  = 7 // in which a returnPercent of 1 is 100
	byNodeBit = 128
)

const _ = uint(sdk.MaxEndpointState - stateSize) // it fits

// read decodes the states of endpoints. One that it cannot decode, for example of a later version, counts as none.
func (m *state) read(req *sdk.Request) {
	m.ejections, m.watches = m.ejections[:0], m.watches[:0]
	u32 := le.Uint32
	for i := range req.NumEndpoints() {
		b := req.EndpointState(i)
		if b == nil {
			return // no endpoint has any
		}
		if b[0] != stateVersion {
			continue
		}
		if e := b[ejectionAt:]; e[4]&^byNodeBit != 0 {
			m.ejections = append(m.ejections, ejection{
				index: i, until: int64(u32(e)), times: int64(e[4] &^ byNodeBit), byNode: e[4]&byNodeBit != 0, stage: int64(min(e[5], maxStage)),
			})
		}
		if w := b[watchAt:]; u32(w) != 0 {
			m.watches = append(m.watches, watch{
				index: i, start: int64(u32(w)), fromAnswered: u32(w[4:]), fromFailed: u32(w[8:]), answered: u32(w[12:]), failed: u32(w[16:]), streak: w[20],
			})
		}
	}
}

// write encodes the states of endpoints.
func (m *state) write(resp *sdk.Response) {
	var none ejection
	slices.SortFunc(m.ejections, func(a, b ejection) int { return cmp.Compare(a.index, b.index) })
	slices.SortFunc(m.watches, func(a, b watch) int { return cmp.Compare(a.index, b.index) })
	for i := range m.ejections {
		if e := &m.ejections[i]; m.watch(e.index) == nil {
			resp.SetEndpointState(e.index, e.append(m.buf[:0]))
		}
	}
	for i := range m.watches {
		w := &m.watches[i]
		e := m.ejection(w.index)
		if e == nil {
			e = &none
		}
		resp.SetEndpointState(w.index, w.append(e.append(m.buf[:0])))
	}
}

// append encodes an ejection, which begins the state of an endpoint.
func (e *ejection) append(b []byte) []byte {
	times := byte(e.times)
	if e.byNode {
		times |= byNodeBit
	}
	return append(le.AppendUint32(append(b, stateVersion), uint32(e.until)), times, byte(e.stage))
}

func (w *watch) append(b []byte) []byte {
	b = le.AppendUint32(b, uint32(w.start))
	b = le.AppendUint32(le.AppendUint32(b, w.fromAnswered), w.fromFailed)
	b = le.AppendUint32(le.AppendUint32(b, w.answered), w.failed)
	return append(b, w.streak)
}

// ejection returns the ejection of an endpoint, nil if it has none.
func (m *state) ejection(index int) *ejection {
	i, ok := slices.BinarySearchFunc(m.ejections, index, func(e ejection, i int) int { return cmp.Compare(e.index, i) })
	if !ok {
		return nil
	}
	return &m.ejections[i]
}

// watch returns the window of an endpoint, nil if it has none.
func (m *state) watch(index int) *watch {
	i, ok := slices.BinarySearchFunc(m.watches, index, func(w watch, i int) int { return cmp.Compare(w.index, i) })
	if !ok {
		return nil
	}
	return &m.watches[i]
}

// left returns the number of times on which the next back-off builds: as in Envoy, a healthy endpoint loses one each interval.
func (e *ejection) left(now, window int64) int64 {
	return max(0, e.times-max(0, now-e.until)/window)
}
