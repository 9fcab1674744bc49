// Package loads is what plugins share that even loads out: the average of each endpoint's load, relative to its fair part, which
// follows readings in bounded steps, and the share of each endpoint, which is divided by the average.
package loads

import (
	"strconv"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// One is a load that is equal to the fair one.
const One = 4096

// Endpoint is an endpoint that gets connections.
type Endpoint struct {
	Index   int
	Fair    uint64 // part of the connections, see weights.Fair
	IsNew   bool   // it has no average: it begins with One
	average uint64 // in 1/One
	parts   uint64 // of its share, of which a fair one has scale
}

// Set is the endpoints of a decision. It keeps only buffers between calls: averages are states of the endpoints.
type Set struct {
	Endpoints []Endpoint
	settings  *Settings
	fair      []uint64
	buf       []byte
	reasons   []reason // by parts
}

// reason is the reason of endpoints with a number of parts. Formatting one costs a guest more than deciding an endpoint, and
// adding one compares texts.
type reason struct {
	text  string
	id    sdk.ReasonID // in the response
	added bool
}

// Collect collects the endpoints that get connections, with their averages.
func (s *Set) Collect(req *sdk.Request, settings *Settings) {
	s.settings = settings
	s.Endpoints = s.Endpoints[:0]
	s.fair = weights.Fair(s.fair, req)
	for i, fair := range s.fair {
		if fair == 0 {
			continue
		}
		e := Endpoint{Index: i, Fair: fair}
		if b := req.EndpointState(i); b != nil {
			e.average = uint64(le.Uint16(b))
		}
		if e.IsNew = e.average == 0; e.IsNew {
			e.average = One
		}
		e.average = min(max(e.average, settings.least()), settings.most()) // other settings, or another writer, may have left it
		s.Endpoints = append(s.Endpoints, e)
	}
}

// Follow makes the average of an endpoint follow a reading, in 1/One, and reports whether it has changed.
func (s *Set) Follow(e *Endpoint, reading uint64) bool {
	before := e.average
	e.average = s.settings.follow(before, reading)
	return e.average != before
}

// scale is the number of parts of a fair share: shares change in steps of 5 % of it.
const scale = 20

// Apply sets shares and reasons: why, if there is one, or what each endpoint has of its share. If all averages are equal, shares
// stay as they are.
func (s *Set) Apply(req *sdk.Request, resp *sdk.Response, why string) {
	equal := true
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.parts = (scale*One + e.average/2) / e.average
		equal = equal && e.parts == s.Endpoints[0].parts
	}
	if why != "" {
		id := resp.AddReason(why)
		for i := range s.Endpoints {
			resp.SetReasonID(s.Endpoints[i].Index, id)
		}
	}
	if equal {
		return
	}
	for i := range s.reasons {
		s.reasons[i].added = false
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		resp.SetShare(e.Index, max(1, req.Endpoint(e.Index).Share()*int(e.parts)/scale))
		if why == "" {
			resp.SetReasonID(e.Index, s.reason(resp, e.parts))
		}
	}
}

// reason returns the reason of endpoints with parts of their share.
func (s *Set) reason(resp *sdk.Response, parts uint64) sdk.ReasonID {
	for uint64(len(s.reasons)) <= parts {
		s.reasons = append(s.reasons, reason{})
	}
	r := &s.reasons[parts]
	if !r.added {
		if r.text == "" {
			r.text = strconv.FormatUint(parts*100/scale, 10) + " % of its share"
		}
		r.id, r.added = resp.AddReason(r.text), true
	}
	return r.id
}

// Remember sets the states of the endpoints: their averages.
func (s *Set) Remember(resp *sdk.Response) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		s.buf = le.AppendUint16(s.buf[:0], uint16(e.average))
		resp.SetEndpointState(e.Index, s.buf)
	}
}

// Requeue asks to be called when the next step is due, an interval after the last one, stepped, in Unix seconds; 0: there was
// none.
func Requeue(resp *sdk.Response, settings *Settings, stepped, now int64) {
	wait := settings.IntervalSeconds
	if left := stepped + wait - now; stepped != 0 && left > 0 {
		wait = left
	}
	resp.RequeueAfter(sdk.Duration(wait) * sdk.Second)
}
