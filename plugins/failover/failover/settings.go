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
	OverprovisioningPercent int64           `json:"overprovisioningPercent" range:"100,1000"`
	HysteresisPercent       int64           `json:"hysteresisPercent" range:"0,50"`
	HoldSeconds             int64           `json:"holdSeconds" range:"0,3600"`
	TolerancePercent        int64           `json:"tolerancePercent" range:"0,20"`
	MaxTotal                int64           `json:"maxTotal" range:"1,65535"`
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
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if err := weights.CheckBy("by", s.By); err != nil {
		return err
	}
	if s.Groups == nil && s.By == weights.ByZone {
		s.Groups = []groupSettings{{Values: []string{localZone}}}
	}
	return p.setGroups(s)
}

// setGroups checks the groups and adds the last one, of all other endpoints.
func (p *plugin) setGroups(s settings) error {
	if err := weights.CheckLen("groups", len(s.Groups), maxGroups); err != nil {
		return err
	}
	of, local := map[string]int{}, len(s.Groups)
	var names []string
	for i, g := range s.Groups {
		if err := weights.CheckLen(fmt.Sprintf("groups[%d].values", i), len(g.Values), maxValues); err != nil {
			return err
		}
		for j, v := range g.Values {
			_, twice := of[v]
			switch {
			case v == localZone && s.By == weights.ByZone && local < len(s.Groups), twice:
				return fmt.Errorf("groups[%d].values[%d]: %q is in another group or twice", i, j, v)
			case v == localZone && s.By == weights.ByZone:
				local = i
			case v == localZone && strings.HasPrefix(s.By, "label:"):
				return fmt.Errorf("groups[%d].values[%d]: %q is the zone of this node, which needs by: zone", i, j, v)
			case strings.HasPrefix(v, "@") && !strings.HasPrefix(s.By, "annotation:"): // no value of a label
				return fmt.Errorf("groups[%d].values[%d]: %q is no %s; the zone of this node is %q", i, j, v, s.By, localZone)
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
