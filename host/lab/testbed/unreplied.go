package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Unreplied are connections from a client to a frontend whose endpoint does not answer, loses its weight, and leaves them in the
// connection tracking table.
type Unreplied struct {
	Node, Client, Silent *testnet.Host
	To, Endpoint         netip.AddrPort // a frontend, and the endpoint at Silent
	Source               netip.Addr     // of the connections that the endpoint sees
	Table                *conntrack.Table
	// Apply gives the endpoint, and another one, these weights.
	Apply func(silent, other uint16)
	// Other is the name of the other endpoint.
	Other string
}

// silentPorts are the client's ports: one for the connection that is established, the others for those that meet silence.
var silentPorts = []uint16{41000, 41001, 41002, 41003, 41004}

// unansweredTimeout is for connections that get no answer. TCP repeats a SYN after 1 s.
const unansweredTimeout = 700 * time.Millisecond

// Check connects while the endpoint is silent, and again from the same ports when it has no weight: without an answer as long as
// their entries exist, and then to the other endpoint, at once. The established connection goes on.
func (u *Unreplied) Check(t *testing.T) {
	t.Helper()
	u.Apply(1, 0)
	established, _ := u.dial(t, silentPorts[0], testnet.AnswerTimeout)
	remove, err := u.Silent.Blackhole(u.Source)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range silentPorts[1:] {
		u.expectSilence(t, p, "of the silent endpoint")
	}
	u.Apply(0, 1)
	u.expectSilence(t, silentPorts[1], "with the entry of the last one")
	n, again := 0, silentPorts[2:]
	if err := u.Node.Do(func() (err error) {
		key := plan.Key{Addr: u.To.Addr(), Port: u.To.Port(), Protocol: model.TCP}
		n, err = u.Table.DeleteUnreplied(t.Context(), []plan.Reset{{Frontend: key, Endpoint: u.Endpoint}})
		return err
	}); err != nil || n < len(again) || n > len(again)+1 { // IPVS deletes the entry of a SYN that it drops
		t.Errorf("%d entries are deleted, want %d or one more; %v", n, len(again), err)
	}
	repeated := 0
	for _, p := range again {
		c, server := u.dial(t, p, testnet.AnswerTimeout)
		if server != u.Other {
			t.Errorf("a connection from a port that is used again is answered by %s, want %s", server, u.Other)
		}
		if n, err := retransmitted(c); err != nil {
			t.Error(err)
		} else if n > 0 {
			repeated++
		}
	}
	if repeated == len(again) { // a busy machine repeats some
		t.Error("every SYN was repeated: the first one was lost")
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	_ = established.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
	if _, err := established.Write([]byte("still there\n")); err != nil {
		t.Error(err)
	}
	if _, err := established.Read(make([]byte, 12)); err != nil {
		t.Errorf("the established connection: %v", err)
	}
}

func (u *Unreplied) connect(port uint16, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: u.Client.Addr(u.To.Addr()).AsSlice(), Port: int(port)}, Timeout: timeout}
	err = u.Client.Do(func() (err error) { c, err = d.DialContext(context.Background(), "tcp", u.To.String()); return err })
	return c, err
}

func (u *Unreplied) expectSilence(t *testing.T, port uint16, what string) {
	t.Helper()
	c, err := u.connect(port, unansweredTimeout)
	if err == nil {
		c.Close()
	}
	if timeout := (net.Error)(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("a connection from port %d, %s: %v, want no answer", port, what, err)
	}
}

// dial opens a connection and returns it with the name of its server.
func (u *Unreplied) dial(t *testing.T, port uint16, timeout time.Duration) (net.Conn, string) {
	t.Helper()
	c, err := u.connect(port, timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(timeout))
	a, err := testnet.Greeting(c)
	if err != nil {
		t.Fatalf("greeting of %s: %v", u.To, err)
	}
	return c, a.Server
}

// retransmitted returns how many segments the client has sent again.
func retransmitted(c net.Conn) (n uint32, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(cerr, err); err != nil {
		return 0, fmt.Errorf("read TCP_INFO: %w", err)
	}
	return info.Total_retrans, nil
}
