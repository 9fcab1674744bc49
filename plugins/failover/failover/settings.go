package failover

import (
	"errors"
	"strconv"
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
	By                      string
	Groups                  []groupSettings
	OverprovisioningPercent int64
	HysteresisPercent       int64
	HoldSeconds             int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("by", &s.By)
	sdk.List(f, "groups", &s.Groups, (*groupSettings).fields)
	f.Int("overprovisioningPercent", &s.OverprovisioningPercent, 100, 1000)
	f.Int("hysteresisPercent", &s.HysteresisPercent, 0, 50)
	f.Int("holdSeconds", &s.HoldSeconds, 0, 3600)
}

type groupSettings struct {
	Values []string
}

func (s *groupSettings) fields(f *sdk.Fields) {
	f.Strings("values", &s.Values)
}

func defaults() settings {
	return settings{By: weights.ByZone, OverprovisioningPercent: 140, HysteresisPercent: 5, HoldSeconds: 30}
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
		if err := weights.CheckLen("groups["+strconv.Itoa(i)+"].values", len(g.Values), maxValues); err != nil {
			return err
		}
		for j, v := range g.Values {
			_, twice := of[v]
			switch {
			case v == localZone && s.By == weights.ByZone && local < len(s.Groups), twice:
				return refuse(i, j, v, " is in another group or twice")
			case v == localZone && s.By == weights.ByZone:
				local = i
			case v == localZone && strings.HasPrefix(s.By, "label:"):
				return refuse(i, j, v, " is the zone of this node, which needs by: zone")
			case strings.HasPrefix(v, "@") && !strings.HasPrefix(s.By, "annotation:"): // no value of a label
				return refuse(i, j, v, " is no "+s.By+"; the zone of this node is "+strconv.Quote(localZone))
			default:
				of[v] = i
			}
		}
		names = append(names, name(g.Values))
	}
	p.settings = s
	p.sorter = weights.NewSorter(s.By, of, len(s.Groups), local)
	p.names, p.hashes = nil, nil
	for i, n := range append(names, "others") {
		p.names = append(p.names, "group "+strconv.Itoa(i+1)+" of "+strconv.Itoa(len(names)+1)+" ("+n+")")
		p.hashes = append(p.hashes, uint32(i))
	}
	return nil
}

// refuse returns an error about value j of group i.
func refuse(i, j int, value, why string) error {
	return errors.New("groups[" + strconv.Itoa(i) + "].values[" + strconv.Itoa(j) + "]: " + strconv.Quote(value) + why)
}

// name returns the name of a group in reasons.
func name(values []string) string {
	text := strings.ReplaceAll(strings.Join(values, ", "), localZone, "this zone")
	if len(text) > maxName {
		text = text[:maxName] + "..."
	}
	return text
}
