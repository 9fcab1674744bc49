package locality

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

// zoneReason has the last reason of a zone in a group.
type zoneReason struct {
	key  textKey
	text string
}

// setZoneReasons sets the reasons of the zones of each group, by their targets.
func (p *plugin) setZoneReasons(req *sdk.Request, resp *sdk.Response) {
	n := len(p.tiers.Load)
	p.reasons = append(p.reasons[:0], make([]sdk.ReasonID, n)...)
	if more := n - len(p.zoneReasons); more > 0 {
		p.zoneReasons = append(p.zoneReasons, make([]zoneReason, more)...)
	}
	for at, load := range p.tiers.Load {
		if load == 0 {
			continue
		}
		zone, target := at%len(p.zones), uint64(p.tiers.Target[at])
		key := textKey{textGets, req.NodeZone(), p.zones[zone].id, (target*200 + sdk.One) / (2 * sdk.One)}
		switch {
		case zone == p.nodeZone:
			key.kind = textKeeps
		case target == 0:
			key.kind = textNothing
		}
		c := &p.zoneReasons[at]
		if c.text == "" || c.key != key {
			c.key, c.text = key, p.text(req, key)
		}
		p.reasons[at] = resp.AddReason(c.text)
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
