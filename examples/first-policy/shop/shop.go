package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

const (
	namespace      = "shop"
	maxConnections = 100_000
	timeout        = time.Minute // of a connection; the machine may be busy
)

// served are the Services whose Pods have servers.
var served = []string{"catalog", "frontend"}

// shop is the boutique, read with the reader that sluice uses.
type shop struct{ *model.Snapshot }

func readShop(folder string) (shop, error) {
	cluster, problems, err := dir.Load(folder)
	if err != nil {
		return shop{}, err
	}
	for _, p := range problems {
		if !p.Warning {
			return shop{}, p
		}
	}
	return shop{cluster}, nil
}

// build creates a Node and the Pods of the served Services. Those of other Nodes are attached in the same way; to sluice, they
// differ by their EndpointSlices only.
func (s shop) build(node string) (*testnet.Lab, error) {
	n := s.Nodes[node]
	if n == nil {
		return nil, fmt.Errorf("no Node %s: want one of %s", node, strings.Join(slices.Sorted(maps.Keys(s.Nodes)), ", "))
	}
	l, err := testnet.New(n.Addresses...)
	if err != nil {
		return nil, err
	}
	pods := 0
	for _, name := range served {
		for _, slice := range s.Slices[model.Name{Namespace: namespace, Name: name}] {
			if slice.Family != model.IPv4 {
				continue
			}
			for _, e := range slice.Endpoints {
				h, err := l.AddHost(fmt.Sprint("pod", pods), e.Addr)
				for _, p := range slice.Ports {
					if err == nil && p.Protocol == model.TCP {
						_, err = h.Serve("tcp", netip.AddrPortFrom(e.Addr, p.Port), e.Zone+"/"+e.Pod) // until this process ends
					}
				}
				if err != nil {
					l.Close()
					return nil, err
				}
				pods++
			}
		}
	}
	if err := lab.ShortenConntrack(l.Node); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// connect makes n connections to the first port of a Service, one after the other, and prints which zones have answered.
func (s shop) connect(out io.Writer, service string, n int) error {
	to, err := s.address(service)
	if err != nil {
		return err
	}
	zones := map[string]int{}
	for i := range n {
		server, err := ask(to)
		if err != nil {
			return fmt.Errorf("connection %d to %s (%s): %w", i+1, service, to, err)
		}
		zone, _, _ := strings.Cut(server, "/")
		zones[zone]++
	}
	fmt.Fprintf(out, "%d connections to %s (%s)\n", n, service, to)
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		fmt.Fprintf(out, "%s  %2.0f %%\n", zone, 100*float64(zones[zone])/float64(n))
	}
	return nil
}

// ask returns the name that the server of a new connection sends.
func ask(to netip.AddrPort) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	a, err := testnet.Greeting(c)
	return a.Server, err
}

// address returns the IPv4 ClusterIP and the first port of a Service whose Pods have servers.
func (s shop) address(service string) (netip.AddrPort, error) {
	o := s.Services[model.Name{Namespace: namespace, Name: service}]
	switch {
	case o == nil || len(o.Ports) == 0:
		return netip.AddrPort{}, fmt.Errorf("no Service %s/%s with a port", namespace, service)
	case !slices.Contains(served, service):
		return netip.AddrPort{}, fmt.Errorf("no server runs in the Pods of Service %s: want one of %s", service, strings.Join(served, ", "))
	}
	for _, a := range o.ClusterIPs {
		if a.Is4() {
			return netip.AddrPortFrom(a, o.Ports[0].Port), nil
		}
	}
	return netip.AddrPort{}, errors.New("no IPv4 address of Service " + service)
}
