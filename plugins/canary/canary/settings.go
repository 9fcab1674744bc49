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
	By     string
	Groups []groupSettings
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("by", &s.By)
	sdk.List(f, "groups", &s.Groups, (*groupSettings).fields)
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

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := settings{By: "label:track"}
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if err := weights.CheckBy("by", s.By); err != nil {
		return err
	}
	if err := weights.CheckLen("groups", len(s.Groups), maxGroups); err != nil {
		return err
	}
	of, left := map[string]int{}, uint32(sdk.One)
	p.groups = nil
	for i, g := range s.Groups {
		at := "groups[" + strconv.Itoa(i) + "]"
		if _, twice := of[g.Value]; twice {
			return errors.New(at + ".value: " + strconv.Quote(g.Value) + " is in another group")
		}
		part := uint32(math.Round(g.Percent * sdk.One / 100))
		if g.Percent > 0 && part < sdk.One/100_000 {
			return errors.New(at + ".percent: " + strconv.FormatFloat(g.Percent, 'g', -1, 64) + " is neither 0 nor 0.001 or more")
		}
		if part > left {
			return errors.New(at + ".percent: the groups have more than 100 % together")
		}
		of[g.Value], left = i, left-part
		p.groups = append(p.groups, group{name: name(g.Value), part: part})
	}
	p.groups = append(p.groups, group{name: "others"})
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
