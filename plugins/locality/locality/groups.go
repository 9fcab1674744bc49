package locality

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

// groupSettings is a group of endpoints.
type groupSettings struct {
	Values []string
}

func (s *groupSettings) fields(f *sdk.Fields) {
	f.Strings("values", &s.Values)
}

// configureGroups checks the groups and adds the last one, of all other endpoints.
func (p *plugin) configureGroups() error {
	s := &p.settings
	if err := weights.CheckBy("by", s.By); err != nil {
		return err
	}
	if s.Groups == nil && s.By == weights.ByZone {
		s.Groups = []groupSettings{{Values: []string{localZone}}}
	}
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
	p.sorter = weights.NewSorter(s.By, of, len(s.Groups), local)
	p.groupNames, p.hashes = nil, nil
	for i, n := range append(names, "others") {
		p.groupNames = append(p.groupNames, "group "+strconv.Itoa(i+1)+" of "+strconv.Itoa(len(names)+1)+" ("+n+")")
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
