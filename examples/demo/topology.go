package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/examples/internal/lab"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// topology is the network: the node of sluice and, each in a namespace behind a veth pair, the Pods with their servers, a
// client Pod on the node, and a client outside the cluster. Pods of other nodes are attached in the same way; they differ
// only in the manifests.
type topology struct {
	*testnet.Lab
	client  *testnet.Host // a Pod on the node
	outside *testnet.Host
	hosts   map[string]*testnet.Host // by Pod
	servers []func()                 // to stop
	vip     netip.AddrPort           // of catalog, for the frontend's pages
}

var outsideAddr = netip.MustParseAddr("203.0.113.7")

func newTopology(s shop, node string) (*topology, error) {
	self := s.Nodes[node]
	if self == nil {
		return nil, fmt.Errorf("the boutique has no node %s", node)
	}
	vip, err := s.address(catalog)
	if err != nil {
		return nil, err
	}
	network, err := testnet.New(self.Addresses...)
	if err != nil {
		return nil, err
	}
	t := &topology{Lab: network, hosts: map[string]*testnet.Host{}, vip: vip}
	if err := t.fill(s, node); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *topology) fill(s shop, node string) error {
	addr, err := s.free(node, 1)
	if err != nil {
		return err
	}
	if t.client, err = t.AddHost("client", addr[0]); err != nil {
		return err
	}
	if t.outside, err = t.AddHost("outside", outsideAddr); err != nil {
		return err
	}
	for _, p := range s.pods(catalog) {
		if err := t.addCatalog(p); err != nil {
			return err
		}
	}
	for _, p := range s.pods(frontend) {
		if err := t.addFrontend(p); err != nil {
			return err
		}
	}
	return lab.ShortenConntrack(t.Node)
}

func (t *topology) addPod(p pod) (*testnet.Host, error) {
	h, err := t.AddHost(fmt.Sprintf("pod%d", len(t.hosts)), p.addr)
	if err != nil {
		return nil, err
	}
	t.hosts[p.name] = h
	return h, nil
}

// addCatalog starts a Pod whose server sends its name and then echoes its input.
func (t *topology) addCatalog(p pod) error {
	h, err := t.addPod(p)
	if err != nil {
		return err
	}
	s, err := h.Serve("tcp", netip.AddrPortFrom(p.addr, p.port), p.name)
	if err != nil {
		return err
	}
	t.servers = append(t.servers, s.Close)
	return nil
}

// addFrontend starts a Pod that serves the shop's page over HTTP. For each page it calls the catalog: one Service calls
// another through sluice.
func (t *topology) addFrontend(p pod) error {
	h, err := t.addPod(p)
	if err != nil {
		return err
	}
	var l net.Listener
	err = h.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(p.addr, p.port).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.name, err)
	}
	page := func(w http.ResponseWriter, r *http.Request) {
		a, err := h.Ask("tcp", t.vip, connectTimeout)
		if err != nil {
			http.Error(w, "catalog unavailable: "+err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintf(w, "the boutique, served by %s in %s; the catalog by %s\n", p.name, p.zone, a.Server)
	}
	server := &http.Server{Handler: http.HandlerFunc(page), ReadHeaderTimeout: connectTimeout}
	go func() { _ = server.Serve(l) }() // ends by Close
	t.servers = append(t.servers, func() { _ = server.Close() })
	return nil
}

// visit requests the shop's page n times from outside the cluster, each time with a new connection to a NodePort.
func (t *topology) visit(ctx context.Context, at netip.AddrPort, n int) error {
	client := &http.Client{Timeout: 2 * connectTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return t.outside.Dial(ctx, network, at)
		},
	}}
	for i := range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		resp, err := client.Get("http://" + at.String() + "/")
		if err == nil {
			err = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
		}
		if err != nil {
			return fmt.Errorf("request %d to %s: %w", i+1, at, err)
		}
		// Spread over the duration of a measurement.
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

func (t *topology) close() {
	for _, stop := range t.servers {
		stop()
	}
	t.Close()
}
