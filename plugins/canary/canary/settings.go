package canary

import (
	"errors"
	"math"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Limits of the settings.
const (
	maxGroups = 16
	maxName   = 60 // bytes of a value in reasons
)

// settings are the settings of a policy, in JSON.
type settings struct {
	By               string
	Groups           []groupSettings
	TolerancePercent int64
	MaxTotal         int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("by", &s.By)
	sdk.List(f, "groups", &s.Groups, (*groupSettings).fields)
	f.Int("tolerancePercent", &s.TolerancePercent, 0, 50)
	f.Int("maxTotal", &s.MaxTotal, 1, 65535)
}

type groupSettings struct {
	Value   string
	Percent float64
}

func (s *groupSettings) fields(f *sdk.Fields) {
	f.Require("value")
	f.String("value", &s.Value)
	f.Require("percent")
	f.Float("percent", &s.Percent, 0, 100)
}

func defaults() settings {
	return settings{By: "label:track", TolerancePercent: 5, MaxTotal: 1000}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if err := weights.CheckBy("by", s.By); err != nil {
		return err
	}
	if err := weights.CheckLen("groups", len(s.Groups), maxGroups); err != nil {
		return err
	}
	of, left := map[string]int{}, uint64(weights.Million)
	p.groups = nil
	for i, g := range s.Groups {
		at := "groups[" + strconv.Itoa(i) + "]"
		if _, twice := of[g.Value]; twice {
			return errors.New(at + ".value: " + strconv.Quote(g.Value) + " is in another group")
		}
		share := uint64(math.Round(g.Percent * weights.Million / 100))
		if g.Percent > 0 && share < weights.Million/100_000 {
			return errors.New(at + ".percent: " + strconv.FormatFloat(g.Percent, 'g', -1, 64) + " is neither 0 nor 0.001 or more")
		}
		if share > left {
			return errors.New(at + ".percent: the groups have more than 100 % together")
		}
		of[g.Value], left = i, left-share
		p.groups = append(p.groups, group{name: name(g.Value), share: share})
	}
	p.groups = append(p.groups, group{name: "others", share: left})
	p.settings, p.sorter = s, weights.NewSorter(s.By, of, len(s.Groups), len(s.Groups))
	return nil
}

// name returns the name of a group in reasons.
func name(value string) string {
	if len(value) > maxName {
		value = value[:maxName] + "..."
	}
	return `"` + value + `"`
}
