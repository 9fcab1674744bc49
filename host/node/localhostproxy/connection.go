package localhostproxy

import (
	"context"
	"io"
	"net"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// connection is one that the proxy forwards.
type connection struct {
	key      plan.Key
	service  model.Name
	endpoint netip.AddrPort
	client   *net.TCPConn
	cancel   context.CancelFunc // ends dialing
	ctx      context.Context
	// server and reset are guarded by Proxy.mu.
	server *net.TCPConn // nil until connected
	reset  bool         // a drain deadline has passed, or the proxy ends
}

// admit decides about a new connection; nil: it is refused.
func (p *Proxy) admit(client *net.TCPConn, key plan.Key) *connection {
	from := client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.frontends[key]
	switch {
	case !from.IsLoopback(): // with route_localnet, neighbours of the node can send to 127.0.0.1
		p.stats.NotLoopback++
		return nil
	case f == nil:
		return nil
	case len(p.open) >= p.opt.MaxConnections:
		p.stats.OverTotal++
		return nil
	case p.perService[f.Owner.Service] >= p.opt.MaxPerService:
		p.stats.OverService++
		return nil
	}
	endpoint, ok := p.pick(f)
	if !ok {
		return nil
	}
	c := &connection{key: key, service: f.Owner.Service, endpoint: endpoint, client: client}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	p.open[c] = struct{}{}
	p.perService[c.service]++
	p.stats.Accepted++
	return c
}

// serve forwards a connection until both directions have ended or one is reset.
func (p *Proxy) serve(c *connection) {
	defer p.remove(c)
	dialer := net.Dialer{Timeout: p.opt.DialTimeout}
	conn, err := dialer.DialContext(c.ctx, "tcp", c.endpoint.String())
	if err != nil {
		p.mu.Lock()
		if !c.reset {
			p.stats.DialFailures++
		}
		p.mu.Unlock()
		p.opt.Log.Debug("connecting to an endpoint failed", "service", c.service, "endpoint", c.endpoint, "err", err)
		reset(c.client)
		return
	}
	server := conn.(*net.TCPConn)
	p.mu.Lock()
	c.server = server
	ended := c.reset
	p.mu.Unlock()
	if ended {
		reset(server)
		reset(c.client)
		return
	}
	done := make(chan error, 1)
	go func() { done <- forward(server, c.client) }()
	err = forward(c.client, server)
	if err2 := <-done; err != nil || err2 != nil {
		return // both are closed
	}
	_ = server.Close()
	_ = c.client.Close()
}

// forward copies until the end of from, which it passes on as the end of one direction. If the copy fails, because one side was
// reset, it resets both. On Linux io.Copy splices: the data does not pass through this process.
func forward(to, from *net.TCPConn) error {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to)
		reset(from)
	}
	return err
}

// reset closes a connection with RST.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (p *Proxy) remove(c *connection) {
	c.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	if p.perService[c.service]--; p.perService[c.service] == 0 {
		delete(p.perService, c.service)
	}
}

// end resets a connection; p.mu is held.
func (c *connection) end() {
	c.reset = true
	c.cancel()
	if c.server != nil {
		reset(c.server)
		reset(c.client)
	}
}
