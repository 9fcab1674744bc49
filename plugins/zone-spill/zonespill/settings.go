package zonespill

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	Demand              string
	DemandByZone        map[string]int64
	MinEndpointsPerZone int64
	HysteresisPercent   int64
	HoldSeconds         int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("demand", &s.Demand)
	f.Ints("demandByZone", &s.DemandByZone, 0, 1000000)
	f.Int("minEndpointsPerZone", &s.MinEndpointsPerZone, 1, 1000)
	f.Int("hysteresisPercent", &s.HysteresisPercent, 0, 50)
	f.Int("holdSeconds", &s.HoldSeconds, 0, 3600)
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
	return settings{MinEndpointsPerZone: 2, HysteresisPercent: 10, HoldSeconds: 30}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	switch {
	case s.DemandByZone != nil && s.Demand != "":
		return errors.New("demand: " + strconv.Quote(s.Demand) + ", but demandByZone is set too")
	case s.DemandByZone != nil:
		if err := checkDemand(s.DemandByZone); err != nil {
			return err
		}
	case s.Demand != "" && s.Demand != demandNodes && s.Demand != demandCPU:
		return errors.New("demand: " + strconv.Quote(s.Demand) + " is neither " + strconv.Quote(demandNodes) + " nor " + strconv.Quote(demandCPU))
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
		return errors.New("demandByZone: " + strconv.Itoa(len(zones)) + " zones, more than " + strconv.Itoa(maxZones))
	}
	total := int64(0)
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if name == "" || len(name) > maxZoneName {
			return errors.New("demandByZone: the name of zone " + strconv.Quote(name[:min(80, len(name))]) + " has not 1 to " + strconv.Itoa(maxZoneName) + " bytes")
		}
		total += zones[name]
	}
	if total == 0 {
		return errors.New("demandByZone: no zone has demand")
	}
	return nil
}
