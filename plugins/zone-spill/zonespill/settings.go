package zonespill

import (
	"fmt"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
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
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if s.Demand != demandNodes && s.Demand != demandCPU {
		return fmt.Errorf("demand: %q is neither %q nor %q", s.Demand, demandNodes, demandCPU)
	}
	if err := weights.CheckRanges(
		weights.Range{Field: "minEndpointsPerZone", Value: s.MinEndpointsPerZone, Least: 1, Top: 1000},
		weights.Range{Field: "hysteresisPercent", Value: s.HysteresisPercent, Least: 0, Top: 50},
		weights.Range{Field: "holdSeconds", Value: s.HoldSeconds, Least: 0, Top: 3600},
		weights.Range{Field: "tolerancePercent", Value: s.TolerancePercent, Least: 0, Top: 20},
		weights.Range{Field: "maxTotal", Value: s.MaxTotal, Least: 1, Top: 65535},
	); err != nil {
		return err
	}
	p.settings = s
	return nil
}
