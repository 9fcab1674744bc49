package failover

import (
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Limits of the settings.
const (
	maxGroups = 16
	maxValues = 64 // of a group
	maxName   = 60 // bytes of a group's name in reasons
)

// localZone is the value of by: zone for the zone of this node. No zone has this name: it is not the value of a label.
const localZone = "@local"

// settings are the settings of a policy, in JSON.
type settings struct {
	By                      string          `json:"by"`
	Groups                  []groupSettings `json:"groups"`
	OverprovisioningPercent int64           `json:"overprovisioningPercent"`
	HysteresisPercent       int64           `json:"hysteresisPercent"`
	HoldSeconds             int64           `json:"holdSeconds"`
	TolerancePercent        int64           `json:"tolerancePercent"`
	MaxTotal                int64           `json:"maxTotal"`
}

type groupSettings struct {
	Values []string `json:"values"`
}

func defaults() settings {
	return settings{
		By: weights.ByZone, OverprovisioningPercent: 140, HysteresisPercent: 5, HoldSeconds: 30, TolerancePercent: 1, MaxTotal: 1000,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.UnmarshalSettings(text, &s); err != nil {
		return err
	}
	if err := weights.CheckBy("by", s.By); err != nil {
		return err
	}
	if err := weights.CheckRanges(
		weights.Range{Field: "overprovisioningPercent", Value: s.OverprovisioningPercent, Least: 100, Top: 1000},
		weights.Range{Field: "hysteresisPercent", Value: s.HysteresisPercent, Least: 0, Top: 50},
		weights.Range{Field: "holdSeconds", Value: s.HoldSeconds, Least: 0, Top: 3600},
		weights.Range{Field: "tolerancePercent", Value: s.TolerancePercent, Least: 0, Top: 20},
		weights.Range{Field: "maxTotal", Value: s.MaxTotal, Least: 1, Top: 65535},
	); err != nil {
		return err
	}
	if s.Groups == nil && s.By == weights.ByZone {
		s.Groups = []groupSettings{{Values: []string{localZone}}}
	}
	return p.setGroups(s)
}

// setGroups checks the groups and adds the last one, of all other endpoints.
func (p *plugin) setGroups(s settings) error {
	if len(s.Groups) == 0 || len(s.Groups) > maxGroups {
		return fmt.Errorf("groups: %d groups, want 1 to %d", len(s.Groups), maxGroups)
	}
	of, local := map[string]int{}, len(s.Groups)
	var names []string
	for i, g := range s.Groups {
		if len(g.Values) == 0 || len(g.Values) > maxValues {
			return fmt.Errorf("groups[%d].values: %d values, want 1 to %d", i, len(g.Values), maxValues)
		}
		for j, v := range g.Values {
			_, twice := of[v]
			switch {
			case v == localZone && s.By == weights.ByZone && local < len(s.Groups), twice:
				return fmt.Errorf("groups[%d].values[%d]: %q is in another group or twice", i, j, v)
			case v == localZone && s.By == weights.ByZone:
				local = i
			default:
				of[v] = i
			}
		}
		names = append(names, name(g.Values))
	}
	p.settings = s
	p.sorter = weights.NewSorter(s.By, of, len(s.Groups), local)
	p.groups = make([]group, len(s.Groups)+1)
	for i, n := range append(names, "others") {
		p.groups[i].name = fmt.Sprintf("group %d of %d (%s)", i+1, len(p.groups), n)
	}
	return nil
}

// name returns the name of a group in reasons.
func name(values []string) string {
	text := strings.ReplaceAll(strings.Join(values, ", "), localZone, "this zone")
	if len(text) > maxName {
		text = text[:maxName] + "..."
	}
	return text
}
