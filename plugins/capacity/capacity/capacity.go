// Package capacity implements the plugin capacity: an endpoint gets new connections in proportion to a capacity that its Pod
// declares, in an annotation, a label or its CPU request.
package capacity

import (
	"math"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: a decision follows from the request alone.
type plugin struct {
	settings settings
	absent   value                   // of endpoints that declare none
	values   map[sdk.StringID]*value // cache by text; IDs are valid for the life of an instance

	round  uint64 // of decisions
	of     []*value
	wanted []uint64 // capacities in billionths
}

// value is a declared capacity.
type value struct {
	milli uint64 // thousandths
	text  string // reason

	round  uint64       // in which
	reason sdk.ReasonID // was added
}

// maxValues bounds the cache: annotations can have any number of values.
const maxValues = 1000

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Keys implements sdk.Keyer.
func (p *plugin) Keys() []string { return []string{p.settings.From} }

// Decide multiplies the capacity of each endpoint by what its Pod declares. If no endpoint would get connections, all keep
// theirs.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	p.round++
	p.of, p.wanted = p.of[:0], p.wanted[:0]
	some, most := false, uint64(0)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		v, c := &p.absent, uint64(e.Capacity())
		if c > 0 {
			v = p.value(req, i)
		}
		c *= v.milli
		p.of, p.wanted = append(p.of, v), append(p.wanted, c)
		some, most = some || c > 0 && e.Share() > 0, max(most, c)
	}
	unit := max(1000, most/math.MaxUint32+1) // only ratios matter
	for i, v := range p.of {
		if req.Endpoint(i).Capacity() == 0 {
			continue
		}
		if c := p.wanted[i]; some && c > 0 {
			resp.SetCapacity(i, int(max(1, c/unit)))
		} else if some {
			resp.SetCapacity(i, 0)
		}
		if v.round != p.round {
			v.round, v.reason = p.round, resp.AddReason(v.text)
		}
		resp.SetReasonID(i, v.reason)
	}
	return nil
}

// value returns the capacity of endpoint i.
func (p *plugin) value(req *sdk.Request, i int) *value {
	id, present := req.PodValue(i, 0)
	if !present {
		return &p.absent
	}
	v := p.values[id]
	if v != nil {
		return v
	}
	if len(p.values) >= maxValues {
		clear(p.values)
	}
	v = p.newValue(req.Text(id))
	p.values[id] = v
	return v
}

// maxQuote bounds the part of an invalid text that a reason shows, in bytes.
const maxQuote = 32

func (p *plugin) newValue(text string) *value {
	milli, ok := parse(p.settings.From, strings.TrimSpace(text))
	switch {
	case !ok:
		if len(text) > maxQuote {
			text = text[:maxQuote] + "..."
		}
		return &value{milli: p.absent.milli, text: p.absent.text + ": " + strconv.Quote(text) + " is no capacity"}
	case milli == 0 && p.settings.From == sdk.PodCPU: // requests none
		return &p.absent
	}
	return &value{milli: milli, text: "capacity " + format(milli)}
}

// format formats thousandths as a decimal number.
func format(milli uint64) string {
	text := strconv.FormatUint(milli/1000, 10)
	if f := milli % 1000; f > 0 {
		text += "." + strings.TrimRight(strconv.FormatUint(1000+f, 10)[1:], "0")
	}
	return text
}
