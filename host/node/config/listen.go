package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// otherPorts are the ports at which other programs of a Kubernetes node listen by default.
var otherPorts = map[uint16]string{
	2379:  "etcd",
	2380:  "etcd",
	2381:  "etcd's metrics",
	6443:  "the API server",
	10248: "the kubelet's health server",
	10250: "the kubelet",
	10257: "kube-controller-manager",
	10259: "kube-scheduler",
}

// portWarnings returns messages about addresses at which sluice cannot listen, or whose connections go elsewhere.
func (c *Config) portWarnings() (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	type server struct {
		field string
		at    netip.AddrPort
	}
	var servers []server
	for _, s := range [][2]string{
		{"metricsBindAddress", c.MetricsBindAddress}, {"healthzBindAddress", c.HealthzBindAddress}, {"statusPageBindAddress", c.StatusPageBindAddress}, {"stateBindAddress", c.StateBindAddress},
	} {
		if at, err := netip.ParseAddrPort(s[1]); err == nil && at.Port() != 0 {
			servers = append(servers, server{s[0], at})
		}
	}
	for i, b := range servers {
		for _, a := range servers[:i] {
			if overlap(a.at, b.at) {
				warn("%s: %s is the address of %s, %s, so one of the two servers cannot listen", b.field, b.at, a.field, a.at)
			}
		}
	}
	if at, err := netip.ParseAddrPort(c.StatusPageBindAddress); err == nil && !at.Addr().Unmap().IsLoopback() {
		warn("statusPageBindAddress: %s is not a loopback address: whoever reaches it reads the names and addresses of all Services and their endpoints", at)
	}
	for _, s := range servers {
		port := s.at.Port()
		if name := otherPorts[port]; name != "" {
			warn("%s: %d is the default port of %s", s.field, port, name)
		}
		if port < c.NodePortRange.From || port > c.NodePortRange.To || !c.servesNodePorts(s.at.Addr()) {
			continue
		}
		warn("%s: %d is in nodePortRange %s: a Service with this NodePort takes the connections", s.field, port, c.NodePortRange)
	}
	return out
}

// overlap reports whether two servers cannot listen at the same time.
func overlap(a, b netip.AddrPort) bool {
	x, y := a.Addr().Unmap(), b.Addr().Unmap()
	switch {
	case a.Port() != b.Port():
		return false
	case x.IsUnspecified() && y.IsUnspecified():
		return true
	case x.IsUnspecified():
		return x.Is6() || y.Is4() // [::] accepts connections of both families
	case y.IsUnspecified():
		return y.Is6() || x.Is4()
	}
	return x == y
}

// servesNodePorts reports whether NodePorts can be served at the address of a server. That of a loopback address needs
// nodePortAddresses with loopback addresses; which other addresses a node has is not known.
func (c *Config) servesNodePorts(a netip.Addr) bool {
	if !a.Unmap().IsLoopback() {
		return true
	}
	return slices.ContainsFunc(c.NodePortAddresses.Prefixes, func(p netip.Prefix) bool { return p.Addr().IsLoopback() && p.Contains(a.Unmap()) })
}
