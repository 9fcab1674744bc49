package weights

import (
	"errors"
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// ByZone groups endpoints by zone.
const ByZone = "zone"

// CheckBy checks a setting that names the property by which endpoints are grouped: zone, a label or annotation of Pods, or a
// label of Nodes.
func CheckBy(field, by string) error {
	if by == ByZone {
		return nil
	}
	if !abi.IsEndpointKey(by) || by == abi.KeyPodCPU {
		return errors.New(field + ": " + strconv.Quote(by) + " is none of " + ByZone + ", label:KEY, annotation:KEY and node-label:KEY")
	}
	if keys, err := abi.ParseKeys(by); err != nil || len(keys) != 1 {
		return errors.New(field + ": the KEY of " + strconv.Quote(by) + " is not the name of a label or annotation")
	}
	return nil
}

// Sorter finds the groups of endpoints.
type Sorter struct {
	by    string
	of    map[string]int // by value
	other int            // of any other value
	local int            // of the zone of this node; other: no special one

	groups []int16 // cache of of by ID, unknown where it is 0; IDs are small and valid for the life of an instance
}

// maxIDs bounds the cache of a Sorter, which has 2 bytes for each ID. An instance that has seen more strings is slower until the
// host replaces it.
const maxIDs = 1 << 16

// NewSorter returns a Sorter by a property that CheckBy accepts. Endpoints without a value of of are in the group other. Those in
// the zone of the node are in the group local, if that is less than their own.
func NewSorter(by string, of map[string]int, other, local int) Sorter {
	return Sorter{by: by, of: of, other: other, local: local}
}

// Keys returns the keys that the plugin must declare.
func (s *Sorter) Keys() []string {
	if s.by == "" || s.by == ByZone {
		return nil
	}
	return []string{s.by}
}

// Group returns the group of endpoint i.
func (s *Sorter) Group(req *sdk.Request, i int) int {
	if s.by != ByZone {
		id, present := req.PodValue(i, 0)
		if !present {
			return s.other
		}
		return s.groupOf(req, id)
	}
	zone := req.Endpoint(i).Zone()
	if zone == sdk.NoString {
		return s.other
	}
	group := s.groupOf(req, zone)
	if zone == req.NodeZone() {
		group = min(group, s.local)
	}
	return group
}

func (s *Sorter) groupOf(req *sdk.Request, id sdk.StringID) int {
	if int(id) < len(s.groups) && s.groups[id] != 0 {
		return int(s.groups[id]) - 1
	}
	group, ok := s.of[req.Text(id)]
	if !ok {
		group = s.other
	}
	if id < maxIDs {
		if n := int(id) + 1 - len(s.groups); n > 0 {
			s.groups = append(s.groups, make([]int16, n)...)
		}
		s.groups[id] = int16(group) + 1
	}
	return group
}
