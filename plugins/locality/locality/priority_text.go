package locality

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// Values of groupReason.percent for texts without a number. Percentages are at most 100.
const (
	standby   = 101
	unhealthy = 102
)

// groupReason has the last reason of a tier.
type groupReason struct {
	percent uint64
	text    string
}

// setGroupReasons sets the reasons of the tiers. Formatting one costs a guest more than deciding a dozen endpoints, so it formats
// only those that have changed.
func (p *plugin) setGroupReasons(resp *sdk.Response) {
	p.reasons = append(p.reasons[:0], make([]sdk.ReasonID, len(p.members))...)
	if more := len(p.members) - len(p.groupReasons); more > 0 {
		p.groupReasons = append(p.groupReasons, make([]groupReason, more)...)
	}
	for i := range p.members {
		m, c := &p.members[i], &p.groupReasons[i]
		percent := (uint64(p.tiers.Target[i])*200 + sdk.One) / (2 * sdk.One)
		switch {
		case m.count == 0:
			continue
		case m.healthy == 0:
			percent = unhealthy
		case p.tiers.Target[i] == 0:
			percent = standby
		}
		if c.text == "" || c.percent != percent {
			c.percent, c.text = percent, p.groupNames[i%len(p.groupNames)]+": "+groupText(percent)
		}
		p.reasons[i] = resp.AddReason(c.text)
	}
}

func groupText(percent uint64) string {
	switch percent {
	case standby:
		return "standby"
	case unhealthy:
		return "no healthy endpoint"
	default:
		return strconv.FormatUint(percent, 10) + " %"
	}
}
