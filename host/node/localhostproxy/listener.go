package localhostproxy

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// listener serves a NodePort at one loopback address.
type listener struct {
	at     netip.AddrPort
	stop   context.CancelFunc
	socket net.Listener // nil while it cannot be opened; guarded by Proxy.mu
	err    error        // why it cannot; guarded by Proxy.mu
}

// Delays between attempts to listen on a port that is in use.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 10 * time.Second
)

// listen opens the socket and accepts connections until ctx ends.
func (p *Proxy) listen(ctx context.Context, l *listener, key plan.Key) {
	for delay := minRetry; ; delay = min(2*delay, maxRetry) {
		p.mu.Lock() // closeListeners closes the socket before another one is opened in its place
		if ctx.Err() != nil {
			p.mu.Unlock()
			return
		}
		socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.at.String())
		service := p.frontends[key].Owner
		first := l.err == nil
		l.socket, l.err = socket, err
		if err != nil {
			p.failed(l.at)
		}
		p.mu.Unlock()
		switch {
		case err == nil && !first:
			p.opt.Log.Info("listening on loopback for a NodePort again", "service", service, "address", l.at)
		case err != nil && first:
			p.opt.Log.Error("listening on loopback for a NodePort failed; retrying", "service", service, "address", l.at, "err", err)
		}
		if err == nil {
			p.accept(ctx, socket, key)
			_ = socket.Close()
		}
		select {
		case <-ctx.Done():
			return
		case <-p.opt.After(delay):
		}
	}
}

// accept accepts connections until the socket is closed or fails.
func (p *Proxy) accept(ctx context.Context, socket net.Listener, key plan.Key) {
	for {
		conn, err := socket.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			p.opt.Log.Warn("accepting a connection to a NodePort on loopback failed", "address", socket.Addr(), "err", err)
			select { // for example: out of file descriptors
			case <-ctx.Done():
				return
			case <-p.opt.After(minRetry):
			}
			continue
		}
		client := conn.(*net.TCPConn)
		c := p.admit(client, key)
		if c == nil {
			reset(client)
			continue
		}
		p.conns.Go(func() { p.serve(c) })
	}
}
