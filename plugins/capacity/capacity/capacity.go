// Package capacity implements the plugin capacity: an endpoint gets new connections in proportion to a capacity that its Pod
// declares, in an annotation, a label or its CPU request.
package capacity

import (
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: a decision follows from the request alone.
type plugin struct {
	settings settings
	absent   value                   // of endpoints that declare none
	values   map[sdk.StringID]*value // cache by text; IDs are valid for the life of an instance

	round  uint64 // of decisions
	of     []*value
	wanted []uint64 // exact weights
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

// Decide multiplies the weight of each endpoint by its capacity. If no endpoint would have weight, all keep theirs.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	p.round++
	p.of, p.wanted = p.of[:0], p.wanted[:0]
	some := false
	for i := range req.NumEndpoints() {
		v, w := &p.absent, uint64(req.Endpoint(i).Weight())
		if w > 0 {
			v = p.value(req, i)
		}
		p.of, p.wanted = append(p.of, v), append(p.wanted, w*v.milli)
		some = some || w*v.milli > 0
	}
	if some {
		weights.Reduce(p.wanted, uint64(p.settings.MaxTotal))
	}
	for i, v := range p.of {
		if req.Endpoint(i).Weight() == 0 {
			continue
		}
		if some {
			resp.SetWeight(i, int(p.wanted[i]))
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
