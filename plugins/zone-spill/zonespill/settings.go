package zonespill

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	Demand              string `json:"demand"`
	MinEndpointsPerZone int64  `json:"minEndpointsPerZone"`
	HysteresisPercent   int64  `json:"hysteresisPercent"`
	HoldSeconds         int64  `json:"holdSeconds"`
	TolerancePercent    int64  `json:"tolerancePercent"`
	MaxTotal            int64  `json:"maxTotal"`
}

// Measures of the demand of a zone.
const (
	demandNodes = "nodes"
	demandCPU   = "cpu"
)

func defaults() settings {
	return settings{
		Demand: demandNodes, MinEndpointsPerZone: 2, HysteresisPercent: 10, HoldSeconds: 30, TolerancePercent: 1, MaxTotal: 1000,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.UnmarshalSettings(text, &s); err != nil {
		return err
	}
	if s.Demand != demandNodes && s.Demand != demandCPU {
		return fmt.Errorf("demand: %q is neither %q nor %q", s.Demand, demandNodes, demandCPU)
	}
	for _, r := range []struct {
		name       string
		value      int64
		least, top int64
	}{
		{"minEndpointsPerZone", s.MinEndpointsPerZone, 1, 1000},
		{"hysteresisPercent", s.HysteresisPercent, 0, 50},
		{"holdSeconds", s.HoldSeconds, 0, 3600},
		{"tolerancePercent", s.TolerancePercent, 0, 20},
		{"maxTotal", s.MaxTotal, 1, 65535},
	} {
		if r.value < r.least || r.value > r.top {
			return fmt.Errorf("%s: %d is not %d to %d", r.name, r.value, r.least, r.top)
		}
	}
	p.settings = s
	return nil
}
