package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// longConnection is one long connection to one Pod: it says something every 20 ms and hears it again.
type longConnection struct {
	conn      net.Conn
	stop      chan struct{}
	result    chan error
	exchanges int
	began     time.Time
}

// openLongConnection connects to a Service until it gets through to a Pod of this name.
func openLongConnection(ctx context.Context, from *testnet.Host, to netip.AddrPort, pod string) (*longConnection, error) {
	for range 500 {
		conn, err := from.Dial(ctx, "tcp", to)
		if err != nil {
			return nil, fmt.Errorf("open a long connection: %w", err)
		}
		r := bufio.NewReader(conn)
		_ = conn.SetDeadline(time.Now().Add(connectTimeout))
		greeting, err := r.ReadString('\n')
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("open a long connection: %w", err)
		}
		if name, _, _ := strings.Cut(greeting, " "); name != pod {
			conn.Close()
			continue
		}
		t := &longConnection{conn: conn, stop: make(chan struct{}), result: make(chan error, 1), began: time.Now()}
		go func() { t.result <- t.run(r) }()
		return t, nil
	}
	return nil, errors.New("open a long connection: 500 tries and none reached " + pod)
}

func (t *longConnection) run(r *bufio.Reader) error {
	defer t.conn.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return nil
		case <-tick.C:
		}
		line := fmt.Sprintf("are you still there? %d\n", t.exchanges)
		_ = t.conn.SetDeadline(time.Now().Add(connectTimeout))
		if _, err := t.conn.Write([]byte(line)); err != nil {
			return fmt.Errorf("the long connection broke after %d exchanges: %w", t.exchanges, err)
		}
		heard, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the long connection broke after %d exchanges: %w", t.exchanges, err)
		}
		if heard != line {
			return fmt.Errorf("the long connection: said %q and heard %q", line, heard)
		}
		t.exchanges++
	}
}

// end closes the connection and tells how many times it was used, or what broke it.
func (t *longConnection) end() (int, time.Duration, error) {
	close(t.stop)
	err := <-t.result
	return t.exchanges, time.Since(t.began), err
}
