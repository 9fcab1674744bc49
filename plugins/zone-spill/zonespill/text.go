package zonespill

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// textKey is what the reason for a zone's endpoints depends on.
type textKey struct {
	from, to sdk.ID
	percent  uint64
}

// maxTexts bounds what is kept of texts.
const maxTexts = 1000

// explain sets the zones' reasons, from the shares that the whole numbers give.
func (p *plugin) explain(req *sdk.Request) {
	total := uint64(0)
	for i := range p.zones {
		total += p.zones[i].times * p.zones[i].capacity
	}
	if p.texts == nil || len(p.texts) > maxTexts {
		p.texts = map[textKey]string{}
	}
	for i := range p.zones {
		z := &p.zones[i]
		if z.capacity == 0 {
			continue
		}
		key := textKey{req.Zone(), z.id, (z.times*z.capacity*200 + total) / (2 * total)}
		text, ok := p.texts[key]
		if !ok {
			text = reason(req, key, z.times)
			p.texts[key] = text
		}
		z.text = text
	}
}

func reason(req *sdk.Request, k textKey, times uint64) string {
	from, to := req.String(k.from), req.String(k.to)
	percent := strconv.FormatUint(k.percent, 10) + " %"
	switch {
	case k.from == k.to:
		return "zone " + to + " keeps " + percent
	case times == 0:
		return "zone " + to + " gets nothing from zone " + from
	}
	return "zone " + to + " gets " + percent + " from zone " + from
}

// tooFew says which zone keeps this plugin from acting, or that it waits.
func (p *plugin) tooFew(req *sdk.Request) string {
	i := p.few()
	if i < 0 {
		return "default kept: zones have had enough endpoints for less than " +
			strconv.FormatInt(p.settings.HoldSeconds, 10) + " s"
	}
	return "default kept: zone " + req.String(p.zones[i].id) + " has " + strconv.FormatInt(p.zones[i].ready, 10) +
		" ready endpoints, fewer than " + strconv.FormatInt(p.settings.MinEndpointsPerZone, 10)
}
