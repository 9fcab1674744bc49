package zonespill

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// textKey is the cache key of a reason. Formatting one costs a guest more than deciding a dozen endpoints.
type textKey struct {
	kind     uint8
	from, to sdk.StringID
	number   uint64
}

// Kinds of reasons.
const (
	textKeeps   = iota // number percent
	textGets           // number percent
	textNothing        // gets
	textTooFew         // number endpoints
)

// maxTexts bounds the cache.
const maxTexts = 1000

// setReasons sets the reasons of the zones, from the shares that result from the multipliers.
func (p *plugin) setReasons(req *sdk.Request, resp *sdk.Response) {
	for i := range p.zones {
		z, g := &p.zones[i], &p.groups[i]
		if g.Capacity == 0 {
			continue
		}
		key := textKey{textGets, req.NodeZone(), z.id, p.groups.Percent(i)}
		switch {
		case i == p.nodeZone:
			key.kind = textKeeps
		case g.Multiplier == 0:
			key.kind = textNothing
		}
		n := p.zoneCache(i)
		if n.text == "" || n.key != key {
			n.key, n.text = key, p.text(req, key)
		}
		z.multiplier, z.reason = g.Multiplier, resp.AddReason(n.text)
	}
}

// defaultReason returns why the plugin does not act.
func (p *plugin) defaultReason(req *sdk.Request) string {
	if i := p.zoneBelowMinimum(); i >= 0 {
		return p.text(req, textKey{textTooFew, sdk.NoString, p.zones[i].id, uint64(p.zones[i].ready)})
	}
	return "default kept: zones have not had enough endpoints for long enough"
}

func (p *plugin) text(req *sdk.Request, k textKey) string {
	if s, ok := p.texts[k]; ok {
		return s
	}
	if p.texts == nil || len(p.texts) > maxTexts {
		p.texts = map[textKey]string{}
	}
	from, to, number := req.Text(k.from), req.Text(k.to), strconv.FormatUint(k.number, 10)
	var s string
	switch k.kind {
	case textKeeps:
		s = "zone " + to + " keeps " + number + " %"
	case textGets:
		s = "zone " + to + " gets " + number + " % from zone " + from
	case textNothing:
		s = "zone " + to + " gets nothing from zone " + from
	case textTooFew:
		s = "default kept: zone " + to + " has " + number + " ready, fewer than " +
			strconv.FormatInt(p.settings.MinEndpointsPerZone, 10)
	}
	p.texts[k] = s
	return s
}
