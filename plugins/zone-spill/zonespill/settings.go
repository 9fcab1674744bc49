package zonespill

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	Demand              string           `json:"demand"`
	DemandByZone        map[string]int64 `json:"demandByZone" range:"0,1000000"`
	MinEndpointsPerZone int64            `json:"minEndpointsPerZone" range:"1,1000"`
	HysteresisPercent   int64            `json:"hysteresisPercent" range:"0,50"`
	HoldSeconds         int64            `json:"holdSeconds" range:"0,3600"`
	TolerancePercent    int64            `json:"tolerancePercent" range:"0,20"`
	MaxTotal            int64            `json:"maxTotal" range:"1,65535"`
}

// Measures of the demand of a zone.
const (
	demandNodes = "nodes"
	demandCPU   = "cpu"
)

// Limits of demandByZone.
const (
	maxZones    = 100
	maxZoneName = 63 // bytes: a zone is the value of a label
)

func defaults() settings {
	return settings{
		MinEndpointsPerZone: 2, HysteresisPercent: 10, HoldSeconds: 30, TolerancePercent: 1, MaxTotal: 1000,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	switch {
	case s.DemandByZone != nil && s.Demand != "":
		return fmt.Errorf("demand: %q, but demandByZone is set too", s.Demand)
	case s.DemandByZone != nil:
		if err := checkDemand(s.DemandByZone); err != nil {
			return err
		}
	case s.Demand != "" && s.Demand != demandNodes && s.Demand != demandCPU:
		return fmt.Errorf("demand: %q is neither %q nor %q", s.Demand, demandNodes, demandCPU)
	}
	p.settings, p.configuredTotal = s, 0
	for _, n := range s.DemandByZone {
		p.configuredTotal += uint64(n)
	}
	return nil
}

// checkDemand checks demandByZone.
func checkDemand(zones map[string]int64) error {
	if len(zones) > maxZones {
		return fmt.Errorf("demandByZone: %d zones, more than %d", len(zones), maxZones)
	}
	total := int64(0)
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if name == "" || len(name) > maxZoneName {
			return fmt.Errorf("demandByZone: the name of zone %.80q has not 1 to %d bytes", name, maxZoneName)
		}
		total += zones[name]
	}
	if total == 0 {
		return fmt.Errorf("demandByZone: no zone has demand")
	}
	return nil
}
