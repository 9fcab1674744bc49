package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// localhostPlan has NodePorts of UDP, and of SCTP and TCP beside them, with or without their rules for loopback addresses.
const localhostPlan = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  LOCALHOST
  masquerade-mark      0x4000
service shop/web
  port dns    *4:30080/UDP   NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port empty  *4:30081/UDP   NodePort  masquerade=always balance=random
    reject 0 endpoints, total 0
  port sctp   *4:30080/SCTP  NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port tcp    *4:30082/TCP   NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port dns    *6:30080/UDP   NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
  port empty  *6:30081/UDP   NodePort  masquerade=always balance=random
    reject 0 endpoints, total 0
  port sctp   *6:30080/SCTP  NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
  port tcp    *6:30082/TCP   NodePort  masquerade=always balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
`

// ExpectLocalhostNodePortsRefuse checks what packets of the node to NodePorts at loopback addresses meet that are not served
// there, while they are to be refused there and while they are not. p1 serves 9000. apply programs a plan; rejected reads the
// counters, by family and protocol.
func ExpectLocalhostNodePortsRefuse(t testing.TB, node *testnet.Host, apply func(plan string), rejected func() map[string]uint64) {
	t.Helper()
	localhost := "localhost-addresses  127.0.0.1 ::1"
	on := func() { t.Helper(); apply(strings.Replace(localhostPlan, "LOCALHOST", localhost, 1)) }
	off := func() { t.Helper(); apply(strings.Replace(localhostPlan, "  LOCALHOST\n", "", 1)) }
	serve := func(network, at string) {
		t.Helper()
		s, err := node.Serve(network, netip.MustParseAddrPort(at), "host")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	answer := func(network, to, want string) {
		t.Helper()
		if got, err := node.Ask(network, netip.MustParseAddrPort(to), testnet.AnswerTimeout); err != nil || got.Server != want {
			t.Errorf("%s %s: %+v, %v, want an answer of %s", network, to, got, err, want)
		}
	}
	refused := func(network, to string) {
		t.Helper()
		begin := time.Now()
		if _, err := node.Ask(network, netip.MustParseAddrPort(to), testnet.AnswerTimeout); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(begin) > testnet.AnswerTimeout/2 {
			t.Errorf("%s %s: %v after %s, want %v at once", network, to, err, time.Since(begin), syscall.ECONNREFUSED)
		}
	}
	for _, c := range []struct {
		family                model.Family
		loopback, other, node string
	}{{model.IPv4, "127.0.0.1", "127.0.0.2", "192.168.0.1"}, {model.IPv6, "[::1]", "[fd00:192::7]", "[fd00:192::1]"}} {
		// Programs of the node: one has the number of a NodePort, at a loopback address and at another one.
		serve("udp", c.loopback+":30080")
		serve("udp", c.loopback+":30082") // a NodePort of TCP
		serve("tcp", c.loopback+":30082")
		serve("udp", c.loopback+":30099") // no NodePort
		serve("udp", c.other+":30080")
		udp, sctp := c.family.String()+" UDP", c.family.String()+" SCTP"

		off()
		answer("udp", c.loopback+":30080", "host")
		answer("udp", c.node+":30080", "p1")
		before := rejected()

		on()
		for range 2 {
			refused("udp", c.loopback+":30080")
			refused("udp", c.loopback+":30081")
		}
		answer("udp", c.loopback+":30082", "host")
		answer("tcp", c.loopback+":30082", "host")
		answer("udp", c.loopback+":30099", "host")
		answer("udp", c.other+":30080", "host")
		answer("udp", c.node+":30080", "p1")
		if err := node.Do(func() error { return askFromPort(c.loopback, 30081, 30099) }); err != nil {
			t.Errorf("an answer to a program with the number of a NodePort: %v", err)
		}
		if n := rejected()[udp] - before[udp]; n != 4 {
			t.Errorf("%s: counted %d packets, want 4", udp, n)
		}
		if n := rejected()[sctp] - before[sctp]; n != 0 {
			t.Errorf("%s: counted %d packets, want none", sctp, n)
		}
		if testnet.SCTP() == nil {
			refused("sctp", c.loopback+":30080")
			answer("sctp", c.node+":30080", "p1")
			if n := rejected()[sctp] - before[sctp]; n != 1 {
				t.Errorf("%s: counted %d packets, want 1", sctp, n)
			}
		}
		on() // nothing changes
		if n := rejected()[udp] - before[udp]; n != 4 {
			t.Errorf("%s: counted %d packets after another Apply, want 4", udp, n)
		}
		off()
		answer("udp", c.loopback+":30080", "host")
	}
}

// askFromPort asks a server at a loopback address over UDP from a port of the same address.
func askFromPort(loopback string, from, to uint16) error {
	at := func(port uint16) *net.UDPAddr {
		return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(fmt.Sprintf("%s:%d", loopback, port)))
	}
	c, err := net.DialUDP("udp", at(from), at(to))
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
	if _, err := c.Write([]byte("who?")); err != nil {
		return err
	}
	_, err = testnet.Greeting(c)
	return err
}
