package main

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// pageAddress is the address of sluice's status page on the node, in the node's network namespace.
const pageAddress = "127.0.0.1:10251"

// Environment variables of the process inside the namespaces: the socket at which it forwards connections to the status page, and
// the page's URL for browsers of this machine.
const (
	pageSocket = "SLUICE_DEMO_PAGE_SOCKET"
	pageURL    = "SLUICE_DEMO_PAGE_URL"
)

// offerPage listens on a loopback address of this machine, and forwards connections to the process inside the namespaces: no
// browser is there. If that is not possible, the demo has no page to show.
func offerPage() (stop func()) {
	none := func() {}
	if testnet.Inside() {
		return none
	}
	dir, err := os.MkdirTemp("", "sluice-demo-page-")
	if err != nil {
		return none
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		_ = os.RemoveAll(dir)
		return none
	}
	socket := filepath.Join(dir, "sock")
	_ = os.Setenv(pageSocket, socket)
	_ = os.Setenv(pageURL, "http://"+l.Addr().String()+"/")
	go forward(l, func() (net.Conn, error) { return net.Dial("unix", socket) })
	return func() {
		_ = l.Close()
		_ = os.RemoveAll(dir)
	}
}

// servePage forwards the connections of offerPage to the status page. It returns the URL for browsers of this machine; "": there
// is none.
func (d *demo) servePage() string {
	l, err := net.Listen("unix", os.Getenv(pageSocket))
	if os.Getenv(pageSocket) == "" || err != nil {
		return ""
	}
	d.page = l
	go forward(l, func() (net.Conn, error) {
		return d.net.Node.Dial(context.Background(), "tcp", netip.MustParseAddrPort(pageAddress))
	})
	return os.Getenv(pageURL)
}

// maxForwarded bounds the connections that are forwarded at a time.
const maxForwarded = 32

// forward connects each connection of a listener to another one, until the listener is closed.
func forward(l net.Listener, dial func() (net.Conn, error)) {
	slots := make(chan struct{}, maxForwarded)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			to, err := dial()
			if err != nil {
				return
			}
			defer to.Close()
			end := sync.OnceFunc(func() { _ = c.Close(); _ = to.Close() })
			go func() {
				_, _ = io.Copy(to, c)
				end()
			}()
			_, _ = io.Copy(c, to)
			end()
		}()
	}
}
