package planner

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// clusterIPs knows the ClusterIPs of all Services, which are no endpoints, and which Services name them as such. A cluster with
// ServiceCIDR objects needs neither: these contain every ClusterIP.
type clusterIPs struct {
	used  map[netip.Addr]int     // how many Services have it; nil: not needed
	named map[netip.Addr]*naming // by the addresses in EndpointSlices
}

// naming is the Services whose slices name an address, with how often they do. Mostly there is one.
type naming struct {
	first model.Name
	n     int // of first
	more  map[model.Name]int
}

func (n *naming) add(name model.Name, by int) {
	if n.n == 0 && n.more[name] == 0 {
		n.first = name
	}
	if n.n != 0 && n.first == name || n.n == 0 && n.more[name] == 0 {
		n.n += by
		return
	}
	if n.more == nil {
		n.more = map[model.Name]int{}
	}
	if n.more[name] += by; n.more[name] == 0 {
		delete(n.more, name)
	}
}

func (n *naming) services() (out []model.Name) {
	if n == nil {
		return nil
	}
	if n.n > 0 {
		out = append(out, n.first)
	}
	return slices.AppendSeq(out, maps.Keys(n.more))
}

// contains reports whether an address is a ClusterIP.
func (c *clusterIPs) contains(a netip.Addr) bool { return c.used[a] > 0 }

// follow starts or stops following a cluster, as it needs it.
func (c *clusterIPs) follow(cluster *model.Snapshot) {
	if needed := len(cluster.CIDRs) == 0; needed == (c.used != nil) {
		return
	} else if !needed {
		*c = clusterIPs{}
		return
	}
	c.used, c.named = map[netip.Addr]int{}, map[netip.Addr]*naming{}
	for _, s := range cluster.Services {
		for _, a := range s.ClusterIPs {
			c.used[a]++
		}
	}
	for _, list := range cluster.Slices {
		for _, s := range list {
			c.rename(nil, s)
		}
	}
}

// change takes in a change before it is applied to the cluster, and returns the Services whose endpoints it makes safe or unsafe.
func (c *clusterIPs) change(cluster *model.Snapshot, change *model.Change) (affected []model.Name) {
	if c.used == nil {
		return nil
	}
	switch change.Kind {
	case model.SliceKind:
		c.rename(cluster.Slice(change.Name), change.Slice)
	case model.ServiceKind:
		var had, has []netip.Addr
		if old := cluster.Services[change.Name]; old != nil {
			had = old.ClusterIPs
		}
		if change.Service != nil {
			has = change.Service.ClusterIPs
		}
		if slices.Equal(had, has) {
			return nil
		}
		for _, a := range has {
			if c.used[a]++; c.used[a] == 1 {
				affected = append(affected, c.named[a].services()...)
			}
		}
		for _, a := range had {
			if c.used[a]--; c.used[a] == 0 {
				delete(c.used, a)
				affected = append(affected, c.named[a].services()...)
			}
		}
	}
	return affected
}

// rename replaces the addresses of a slice; nil is none. What they have in common at the beginning and at the end costs a
// comparison.
func (c *clusterIPs) rename(old, s *model.EndpointSlice) {
	var had, has []model.SliceEndpoint
	if old != nil {
		had = old.Endpoints
	}
	if s != nil {
		has = s.Endpoints
	}
	if old != nil && s != nil && old.Service == s.Service {
		for len(had) > 0 && len(has) > 0 && had[0].Addr == has[0].Addr {
			had, has = had[1:], has[1:]
		}
		for len(had) > 0 && len(has) > 0 && had[len(had)-1].Addr == has[len(has)-1].Addr {
			had, has = had[:len(had)-1], has[:len(has)-1]
		}
	}
	for i := range had {
		c.name(had[i].Addr, old.Service, -1)
	}
	for i := range has {
		c.name(has[i].Addr, s.Service, 1)
	}
}

// name counts an address that a slice of a Service names.
func (c *clusterIPs) name(a netip.Addr, service model.Name, by int) {
	n := c.named[a]
	if n == nil {
		n = &naming{}
		c.named[a] = n
	}
	if n.add(service, by); n.n == 0 && len(n.more) == 0 {
		delete(c.named, a)
	}
}
