package failover

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// Values of group.percent for texts without a number. Percentages are at most 100.
const (
	standby   = 101
	unhealthy = 102
)

// setReasons sets the reasons of the groups. Formatting one costs a guest more than deciding a dozen endpoints, so it formats
// only those that have changed.
func (p *plugin) setReasons(resp *sdk.Response) {
	for i := range p.groups {
		g := &p.groups[i]
		percent := p.shares.Percent(i)
		switch {
		case g.members == 0:
			continue
		case g.healthy == 0:
			percent = unhealthy
		case p.shares[i].Multiplier == 0:
			percent = standby
		}
		if g.text == "" || g.percent != percent {
			g.percent, g.text = percent, g.name+": "+text(percent)
		}
		g.reason = resp.AddReason(g.text)
	}
}

func text(percent uint64) string {
	switch percent {
	case standby:
		return "standby"
	case unhealthy:
		return "no healthy endpoint"
	default:
		return strconv.FormatUint(percent, 10) + " %"
	}
}
