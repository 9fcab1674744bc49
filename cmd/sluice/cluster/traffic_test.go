package cluster

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// pod is a Pod with a server that answers with its name, on port 8080 of both families.
type pod struct {
	*scene
	name string
	host *testnet.Host
}

// pod creates a Pod behind a node; on is the Node of its object, "" for the same.
func (s *scene) pod(name, app string, behind *labNode, on string) *pod {
	s.Helper()
	if on == "" {
		on = behind.name
	}
	s.pods++
	host, err := behind.AddHost(fmt.Sprint("p", s.pods), behind.podAddrs(s.pods)...)
	s.must(err)
	for _, a := range host.Addrs {
		server, err := host.Serve("tcp", netip.AddrPortFrom(a, 8080), name)
		s.must(err)
		s.Cleanup(server.Close)
	}
	p := &pod{s, name, host}
	s.must(s.AddPod(s.ctx, testcluster.Pod{
		Namespace: s.ns, Name: name, Labels: map[string]string{"app": app}, Node: on, Addrs: host.Addrs, Ready: true,
	}))
	return p
}

func (p *pod) ready(yes bool) { p.Helper(); p.must(p.SetPodReady(p.ctx, p.ns, p.name, yes)) }
func (p *pod) terminate()     { p.Helper(); p.must(p.TerminatePod(p.ctx, p.ns, p.name)) }
func (p *pod) remove()        { p.Helper(); p.must(p.RemovePod(p.ctx, p.ns, p.name)) }

// vip returns a Service's ClusterIP of a family with its first port.
func (s *scene) vip(service string, six bool) netip.AddrPort {
	s.Helper()
	o, err := s.Client.CoreV1().Services(s.ns).Get(s.ctx, service, metav1.GetOptions{})
	s.must(err)
	for _, text := range o.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == six {
			return netip.AddrPortFrom(a, uint16(o.Spec.Ports[0].Port))
		}
	}
	s.Fatalf("Service %s/%s: no cluster IP of the family: %v", s.ns, service, o.Spec.ClusterIPs)
	return netip.AddrPort{}
}

// tries is how many connections determine which Pods answer: of six Pods, one is missed once in 10⁷.
const tries = 100

// answers returns the sorted names of the Pods that answer. A failed connection is an error.
func answers(from *testnet.Host, to netip.AddrPort) (string, error) {
	seen := map[string]bool{}
	for range tries {
		a, err := from.Ask("tcp", to, timeout)
		if err != nil {
			return "", err
		}
		seen[a.Server] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " "), nil
}

// expect waits until exactly these Pods answer.
func (s *scene) expect(from *testnet.Host, to netip.AddrPort, want string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s to %s: %q", hostName(from), to, want), func() error {
		got, err := answers(from, to)
		if err == nil && got != want {
			err = fmt.Errorf("%q answer", got)
		}
		return err
	})
}

// expectRefused and expectSilent wait until connections are rejected, or time out.
func (s *scene) expectRefused(from *testnet.Host, to netip.AddrPort) {
	s.Helper()
	s.expectFailure("refused", from, to, testnet.Refused)
}

func (s *scene) expectSilent(from *testnet.Host, to netip.AddrPort) {
	s.Helper()
	s.expectFailure("not answered", from, to, testnet.TimedOut)
}

// expectNoFrontend waits until an address has no frontend, so that the node routes its packets back to the network.
func (s *scene) expectNoFrontend(from *testnet.Host, to netip.AddrPort) {
	s.Helper()
	s.expectFailure("not reached", from, to, func(err error) bool { return err != nil && !testnet.Refused(err) })
}

func (s *scene) expectFailure(what string, from *testnet.Host, to netip.AddrPort, matches func(error) bool) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s to %s: %s", hostName(from), to, what), func() error {
		a, err := from.Ask("tcp", to, 300*time.Millisecond)
		if matches(err) {
			return nil
		}
		return fmt.Errorf("%+v, %w", a, err)
	})
}

// share measures the share of connections that Pods get.
func (s *scene) share(from *testnet.Host, to netip.AddrPort, of ...string) float64 {
	s.Helper()
	const n = 500
	hits := 0
	for range n {
		a, err := from.Ask("tcp", to, timeout)
		s.must(err)
		if slices.Contains(of, a.Server) {
			hits++
		}
	}
	return float64(hits) / n
}

// expectShare waits until Pods get a share within 0.1, which is more than four standard deviations of a measurement.
func (s *scene) expectShare(from *testnet.Host, to netip.AddrPort, want float64, of ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s to %s: %.2f for %v", hostName(from), to, want, of), func() error {
		if got := s.share(from, to, of...); got < want-0.1 || got > want+0.1 {
			return fmt.Errorf("%.3f", got)
		}
		return nil
	})
}

// conversation is a long-lived connection.
type conversation struct {
	*scene
	what string
	conn net.Conn
	in   *bufio.Reader
	with string // the Pod
	sent int
}

// converse opens a connection that lasts until the test ends.
func (s *scene) converse(from *testnet.Host, to netip.AddrPort) *conversation {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", to)
	s.must(err)
	s.Cleanup(func() { conn.Close() })
	c := &conversation{scene: s, what: fmt.Sprintf("%s to %s", hostName(from), to), conn: conn, in: bufio.NewReader(conn)}
	s.must(conn.SetDeadline(time.Now().Add(timeout)))
	line, err := c.in.ReadString('\n')
	s.must(err)
	c.with, _, _ = strings.Cut(line, " ")
	return c
}

// expectAlive checks that the server echoes a message.
func (c *conversation) expectAlive() {
	c.Helper()
	c.sent++
	word := fmt.Sprintf("still there? %d\n", c.sent)
	c.must(c.conn.SetDeadline(time.Now().Add(timeout)))
	_, err := c.conn.Write([]byte(word))
	if err == nil {
		var echo string
		if echo, err = c.in.ReadString('\n'); err == nil && echo != word {
			err = fmt.Errorf("received %q, sent %q", echo, word)
		}
	}
	if err != nil {
		c.Fatalf("the connection %s, with %s, is broken: %v\n%s", c.what, c.with, err, c.logs())
	}
}

// load makes connections until it is stopped. None may fail.
func (s *scene) load(from *testnet.Host, to netip.AddrPort) (stop func()) {
	var done atomic.Bool
	var count, slow atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for !done.Load() {
				begin := time.Now()
				if _, err := from.Ask("tcp", to, timeout); err != nil {
					s.Errorf("connection %d of %s to %s failed: %v", count.Load(), hostName(from), to, err)
					return
				}
				count.Add(1)
				if time.Since(begin) >= time.Second {
					slow.Add(1)
				}
				time.Sleep(time.Millisecond) // pace of a client
			}
		})
	}
	var once sync.Once
	stop = func() {
		s.Helper()
		once.Do(func() {
			defer all.Wait()
			defer done.Store(true)
			testenv.Within(s, timeout, "100 connections", func() bool { return count.Load() >= 100 || s.Failed() })
			s.Logf("%d connections of %s to %s, %d of them longer than a second", count.Load(), hostName(from), to, slow.Load())
		})
	}
	s.Cleanup(stop)
	return stop
}
