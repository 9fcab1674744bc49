package guide

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// accessPath is a path into a Service.
type accessPath struct {
	from *testnet.Host
	to   netip.AddrPort
}

func (w accessPath) String() string { return w.from.Name + " to " + w.to.String() }

// accessPaths returns all paths to Service web: from a Pod, from outside and from the node.
func (n *node) accessPaths() (out []accessPath) {
	for _, cluster := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
		for _, from := range []*testnet.Host{n.client, n.here.Node} {
			out = append(out, accessPath{from, netip.MustParseAddrPort(cluster)})
		}
	}
	for _, external := range []string{"172.18.0.11:30080", "[fd00:18::11]:30080", "198.18.0.10:80", "[fd00:1:198::10]:80"} {
		out = append(out, accessPath{n.outside, netip.MustParseAddrPort(external)})
	}
	return out
}

// load makes connections on every path, one at a time, until it is stopped. A failed one fails the test; stop returns the
// number of the others.
func (n *node) load() (stop func(atLeast int64) int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var made atomic.Int64
	var wg sync.WaitGroup
	for _, w := range n.accessPaths() {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				if _, err := w.from.Ask("tcp", w.to, time.Minute); err != nil {
					n.Errorf("under load, %s: %v after %s", w, err, time.Since(begin))
					return
				}
				made.Add(1)
				time.Sleep(20 * time.Millisecond) // pace of a client: there is only one CPU
			}
		})
	}
	var once sync.Once
	stop = func(atLeast int64) int64 {
		n.Helper()
		once.Do(func() {
			defer wg.Wait()
			defer cancel()
			testenv.Eventually(n, fmt.Sprint(atLeast, " connections"), func() bool { return made.Load() >= atLeast || n.Failed() })
		})
		return made.Load()
	}
	n.Cleanup(func() { stop(0) })
	return stop
}

// answered waits until every path works.
func (n *node) answered(what string) {
	n.Helper()
	for _, w := range n.accessPaths() {
		n.eventually(fmt.Sprintf("%s, %s", what, w), func() error {
			_, err := w.from.Ask("tcp", w.to, testnet.AnswerTimeout)
			return err
		})
	}
}

// holdOpen opens a connection on every path. alive reports those that are dead, closeAll closes them.
func (n *node) holdOpen(since string) (alive func(now string), closeAll func()) {
	n.Helper()
	var closers []func() error
	var checks []func() error
	for _, w := range n.accessPaths() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		c, err := w.from.Dial(ctx, "tcp", w.to)
		cancel()
		if err == nil {
			_, err = testnet.Greeting(c)
		}
		if err != nil {
			n.Fatalf("%s, %s: %v", since, w, err)
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // closes with a RST, so that no connection state remains
		}
		closers = append(closers, c.Close)
		checks = append(checks, func() error {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if _, err := c.Write([]byte("still there\n")); err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			if _, err := c.Read(make([]byte, 12)); err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			return nil
		})
	}
	alive = func(now string) {
		n.Helper()
		for _, check := range checks {
			if err := check(); err != nil {
				n.Errorf("%s, a connection from %s: %v", now, since, err)
			}
		}
	}
	closeAll = func() {
		for _, c := range closers {
			_ = c()
		}
	}
	n.Cleanup(closeAll)
	return alive, closeAll
}
