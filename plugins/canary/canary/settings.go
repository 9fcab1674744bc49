package canary

import (
	"fmt"
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
	By               string          `json:"by"`
	Groups           []groupSettings `json:"groups"`
	TolerancePercent int64           `json:"tolerancePercent" range:"0,50"`
	MaxTotal         int64           `json:"maxTotal" range:"1,65535"`
}

type groupSettings struct {
	Value   *string  `json:"value"`
	Percent *float64 `json:"percent" range:"0,100"`
}

func defaults() settings {
	return settings{By: "label:track", TolerancePercent: 5, MaxTotal: 1000}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
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
		if g.Value == nil {
			return fmt.Errorf("%s.value: missing", at)
		}
		if _, twice := of[*g.Value]; twice {
			return fmt.Errorf("%s.value: %q is in another group", at, *g.Value)
		}
		if g.Percent == nil {
			return fmt.Errorf("%s.percent: missing", at)
		}
		share := uint64(math.Round(*g.Percent * weights.Million / 100))
		if *g.Percent > 0 && share < weights.Million/100_000 {
			return fmt.Errorf("%s.percent: %v is neither 0 nor 0.001 or more", at, *g.Percent)
		}
		if share > left {
			return fmt.Errorf("%s.percent: the groups have more than 100 %% together", at)
		}
		of[*g.Value], left = i, left-share
		p.groups = append(p.groups, group{name: name(*g.Value), share: share})
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
