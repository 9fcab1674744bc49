package locality

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	Mode              string
	HysteresisPercent int64
	HoldSeconds       int64

	// By capacity.
	Demand              string
	DemandByZone        map[string]int64
	MinEndpointsPerZone int64

	// By priority.
	By                      string
	Groups                  []groupSettings
	OverprovisioningPercent int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("mode", &s.Mode)
	f.Int("hysteresisPercent", &s.HysteresisPercent, 0, 50)
	weights.Seconds(f, "hold", &s.HoldSeconds, 0, 3600)

	f.String("demand", &s.Demand)
	f.Ints("demandByZone", &s.DemandByZone, 0, 1000000)
	f.Int("minEndpointsPerZone", &s.MinEndpointsPerZone, 1, 1000)

	f.String("by", &s.By)
	sdk.List(f, "groups", &s.Groups, (*groupSettings).fields)
	f.Int("overprovisioningPercent", &s.OverprovisioningPercent, 100, 1000)
}

// Modes: what divides connections.
const (
	modeCapacity = "capacity"
	modePriority = "priority"
)

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

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := settings{HysteresisPercent: -1, HoldSeconds: 30}
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if s.Mode != "" && s.Mode != modeCapacity && s.Mode != modePriority {
		return errors.New("mode: " + strconv.Quote(s.Mode) + " is neither " + strconv.Quote(modeCapacity) + " nor " + strconv.Quote(modePriority))
	}
	if field, mode := s.ofAnotherMode(); field != "" {
		return errors.New(field + ": needs mode: " + mode)
	}
	s.complete()
	p.settings = s
	if s.Mode == modePriority {
		return p.configureGroups()
	}
	return p.configureDemand()
}

// ofAnotherMode returns a field that is for another mode, and that mode; "" if there is none.
func (s *settings) ofAnotherMode() (field, mode string) {
	priority := s.Mode == modePriority
	switch {
	case priority && s.Demand != "":
		return "demand", modeCapacity
	case priority && s.DemandByZone != nil:
		return "demandByZone", modeCapacity
	case priority && s.MinEndpointsPerZone != 0:
		return "minEndpointsPerZone", modeCapacity
	case !priority && s.By != "":
		return "by", modePriority
	case !priority && s.Groups != nil:
		return "groups", modePriority
	case !priority && s.OverprovisioningPercent != 0:
		return "overprovisioningPercent", modePriority
	}
	return "", ""
}

// complete sets the defaults of the mode.
func (s *settings) complete() {
	hysteresis := int64(10)
	if s.Mode == modePriority {
		hysteresis = 5
		s.By, s.OverprovisioningPercent = cmp.Or(s.By, weights.ByZone), cmp.Or(s.OverprovisioningPercent, 140)
	} else {
		s.Mode, s.MinEndpointsPerZone = modeCapacity, cmp.Or(s.MinEndpointsPerZone, 2)
	}
	if s.HysteresisPercent < 0 {
		s.HysteresisPercent = hysteresis
	}
}

func (p *plugin) configureDemand() error {
	s := &p.settings
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
	p.configuredTotal = 0
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
