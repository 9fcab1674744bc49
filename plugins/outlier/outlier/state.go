package outlier

import (
	"cmp"
	"slices"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/sdk"
)

// ejection is the back-off of an endpoint that has been ejected. It stays for some time after the endpoint has returned.
type ejection struct {
	hash   uint32 // of its address
	until  int64  // Unix seconds
	times  int64  // how often it has been ejected in the end
	byNode bool   // because its node failed
	stage  int64  // of its trial, see plugin.part

	found bool // the request has the endpoint
}

// watch is the window of an endpoint with failed connections. Counts are totals of the node, modulo 2³².
type watch struct {
	hash                 uint32
	start                int64  // Unix seconds
	fromAnswered         uint32 // at the start of the window
	fromFailed           uint32
	answered, failed     uint32 // in the last request
	streak               uint8  // readings with failures, and without an answer since the first of them
	found                bool
	inAnswered, inFailed uint32 // in the window
	relapse              bool   // the stage of a trial ends, and too many connections have failed
}

// state is passed from one decision to the next: 2 bytes, 10 for each ejection, 25 for each watch. Both are sorted by hash.
type state struct {
	ejections []ejection
	watches   []watch
}

const (
	stateVersion = 2
	stateHead    = 2
	ejectionSize = 10
	watchSize    = 25

	maxEjections = 64 // leaves room for 15 watches
	maxTimes     = 127
	maxStage     = 7 // in which a returnPercent of 1 is 100
	byNodeBit    = 128
)

// read decodes a state. One that it cannot decode, for example of a later version, counts as none.
func (m *state) read(b []byte) {
	m.ejections, m.watches = m.ejections[:0], m.watches[:0]
	if len(b) < stateHead || b[0] != stateVersion {
		return
	}
	n := int(b[1])
	if b = b[stateHead:]; n > maxEjections || len(b) < n*ejectionSize || (len(b)-n*ejectionSize)%watchSize != 0 {
		return
	}
	u32 := le.Uint32
	for ; n > 0; n-- {
		m.ejections = append(m.ejections, ejection{hash: u32(b), until: int64(u32(b[4:])), times: int64(b[8] &^ byNodeBit), byNode: b[8]&byNodeBit != 0, stage: int64(min(b[9], maxStage))})
		b = b[ejectionSize:]
	}
	for ; len(b) > 0; b = b[watchSize:] {
		m.watches = append(m.watches, watch{
			hash: u32(b), start: int64(u32(b[4:])), fromAnswered: u32(b[8:]), fromFailed: u32(b[12:]), answered: u32(b[16:]), failed: u32(b[20:]),
			streak: b[24],
		})
	}
	m.sort() // a search needs the order, whoever wrote the state
}

func (m *state) sort() {
	slices.SortFunc(m.ejections, func(a, b ejection) int { return cmp.Compare(a.hash, b.hash) })
	slices.SortFunc(m.watches, func(a, b watch) int { return cmp.Compare(a.hash, b.hash) })
}

// append encodes the state. If there are more watches than fit, it drops those with the fewest failures.
func (m *state) append(b []byte) []byte {
	if room := (sdk.MaxStateLen - stateHead - ejectionSize*len(m.ejections)) / watchSize; len(m.watches) > room {
		slices.SortFunc(m.watches, func(a, b watch) int {
			return cmp.Or(cmp.Compare(b.inFailed, a.inFailed), cmp.Compare(b.streak, a.streak), cmp.Compare(a.hash, b.hash))
		})
		m.watches = m.watches[:room]
	}
	m.sort()
	if len(m.ejections)+len(m.watches) == 0 {
		return b
	}
	b = append(b, stateVersion, byte(len(m.ejections)))
	for _, e := range m.ejections {
		b = le.AppendUint32(le.AppendUint32(b, e.hash), uint32(e.until))
		times := byte(e.times)
		if e.byNode {
			times |= byNodeBit
		}
		b = append(b, times, byte(e.stage))
	}
	for _, w := range m.watches {
		b = le.AppendUint32(le.AppendUint32(b, w.hash), uint32(w.start))
		b = le.AppendUint32(le.AppendUint32(b, w.fromAnswered), w.fromFailed)
		b = le.AppendUint32(le.AppendUint32(b, w.answered), w.failed)
		b = append(b, w.streak)
	}
	return b
}

// ejection returns the ejection of an endpoint, nil if it has none.
func (m *state) ejection(hash uint32) *ejection {
	i, ok := slices.BinarySearchFunc(m.ejections, hash, func(e ejection, h uint32) int { return cmp.Compare(e.hash, h) })
	if !ok {
		return nil
	}
	return &m.ejections[i]
}

// watch returns the window of an endpoint, nil if it has none.
func (m *state) watch(hash uint32) *watch {
	i, ok := slices.BinarySearchFunc(m.watches, hash, func(w watch, h uint32) int { return cmp.Compare(w.hash, h) })
	if !ok {
		return nil
	}
	return &m.watches[i]
}

// left returns the number of times on which the next back-off builds: as in Envoy, a healthy endpoint loses one each interval.
func (e *ejection) left(now, window int64) int64 {
	return max(0, e.times-max(0, now-e.until)/window)
}
