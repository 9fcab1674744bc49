package kube

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// maxPeers bounds the addresses that are remembered: a name of an API server may resolve to other ones again and again.
const maxPeers = 64

// peers are the addresses to which connections have been made: those of API servers, load balancers before them and proxies,
// whatever the kubeconfig names them by.
type peers struct {
	mu      sync.Mutex
	addrs   []netip.Addr // the latest last
	changed chan struct{}
}

// watch makes config's connections known to p.
func (p *peers) watch(config *rest.Config) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			if at, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
				p.add(at.AddrPort().Addr().Unmap().WithZone(""))
			}
		}
		return conn, err
	}
}

func (p *peers) add(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := slices.Index(p.addrs, a)
	if known >= 0 {
		p.addrs = append(slices.Delete(p.addrs, known, known+1), a)
		return
	}
	p.addrs = append(p.addrs[max(0, len(p.addrs)+1-maxPeers):len(p.addrs):len(p.addrs)], a)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Peers returns the addresses to which the client has connected, sorted. PeersChanged receives a value after there are others.
func (c *Client) Peers() []netip.Addr {
	c.peers.mu.Lock()
	defer c.peers.mu.Unlock()
	return slices.SortedFunc(slices.Values(c.peers.addrs), netip.Addr.Compare)
}

// PeersChanged receives a value when Peers has changed.
func (c *Client) PeersChanged() <-chan struct{} { return c.peers.changed }
