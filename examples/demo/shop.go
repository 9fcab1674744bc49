package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

// Services with running servers.
var (
	catalog  = model.Name{Namespace: "shop", Name: "catalog"}
	frontend = model.Name{Namespace: "shop", Name: "frontend"}
)

// pod is an endpoint of a Service.
type pod struct {
	name, node, zone string
	addr             netip.Addr
	port             uint16
	state            condition
}

// shop is the boutique, read from its manifests with the reader that sluice uses.
type shop struct{ *model.Snapshot }

func readShop(folder string) (shop, error) {
	cluster, problems, err := dir.Load(folder)
	if err != nil {
		return shop{}, err
	}
	for _, p := range problems {
		if !p.Warning {
			return shop{}, fmt.Errorf("the boutique's manifests: %w", p)
		}
	}
	return shop{cluster}, nil
}

// pods returns the IPv4 endpoints of a Service, sorted by zone and name.
func (s shop) pods(svc model.Name) []pod {
	var out []pod
	for _, slice := range s.Slices[svc] {
		if slice.Family != model.IPv4 || len(slice.Ports) == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			p := pod{name: e.Pod, node: e.Node, zone: e.Zone, addr: e.Addr, port: slice.Ports[0].Port, state: notReady}
			switch {
			case e.Terminating && e.Serving:
				p.state = terminating
			case e.Ready:
				p.state = ready
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b pod) int { return strings.Compare(a.zone+"/"+a.name, b.zone+"/"+b.name) })
	return out
}

// podsIn returns the endpoints of a Service in a zone.
func (s shop) podsIn(svc model.Name, zone string) []pod {
	return slices.DeleteFunc(s.pods(svc), func(p pod) bool { return p.zone != zone })
}

// address returns the IPv4 ClusterIP and first port of a Service.
func (s shop) address(svc model.Name) (netip.AddrPort, error) {
	o := s.Services[svc]
	if o == nil || len(o.Ports) == 0 {
		return netip.AddrPort{}, fmt.Errorf("the boutique has no Service %s with a port", svc)
	}
	for _, a := range o.ClusterIPs {
		if a.Is4() {
			return netip.AddrPortFrom(a, o.Ports[0].Port), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the boutique's Service %s has no IPv4 address", svc)
}

// nodePort returns the address of a node and the NodePort of a Service.
func (s shop) nodePort(svc model.Name, node string) (netip.AddrPort, error) {
	o, n := s.Services[svc], s.Nodes[node]
	if o == nil || n == nil || len(n.Addresses) == 0 {
		return netip.AddrPort{}, fmt.Errorf("the boutique has no Service %s or no node %s with an address", svc, node)
	}
	for _, p := range o.Ports {
		if p.NodePort != 0 {
			return netip.AddrPortFrom(n.Addresses[0], p.NodePort), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the boutique's Service %s has no NodePort", svc)
}

// demand returns the demand of each zone: the CPU of its nodes in millicores.
func (s shop) demand() map[string]float64 {
	out := map[string]float64{}
	for n := range maps.Values(s.Nodes) {
		out[n.Zone] += float64(n.MilliCPU)
	}
	return out
}

// free returns n unused Pod addresses of a node.
func (s shop) free(node string, n int) ([]netip.Addr, error) {
	used := map[netip.Addr]bool{}
	for _, all := range s.Slices {
		for _, slice := range all {
			for _, e := range slice.Endpoints {
				used[e.Addr] = true
			}
		}
	}
	var out []netip.Addr
	if o := s.Nodes[node]; o != nil {
		for _, cidr := range o.PodCIDRs {
			// Start at 200, above the addresses of the boutique.
			a := cidr.Masked().Addr()
			for range 200 {
				a = a.Next()
			}
			for ; cidr.Addr().Is4() && cidr.Contains(a) && len(out) < n; a = a.Next() {
				if !used[a] {
					out = append(out, a)
				}
			}
		}
	}
	if len(out) < n {
		return nil, errors.New("no free Pod addresses on node " + node)
	}
	return out, nil
}
