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

// longConnection is a connection to a Pod that sends a line every 20 ms and expects its echo.
type longConnection struct {
	conn      net.Conn
	stop      chan struct{}
	result    chan error
	exchanges int
	began     time.Time
}

// openLongConnection connects to a Service until it reaches a given Pod.
func openLongConnection(ctx context.Context, from *testnet.Host, to netip.AddrPort, pod string) (*longConnection, error) {
	for range 500 {
		conn, err := from.Dial(ctx, "tcp", to)
		if err != nil {
			return nil, fmt.Errorf("open a long-lived connection: %w", err)
		}
		r := bufio.NewReader(conn)
		_ = conn.SetDeadline(time.Now().Add(connectTimeout))
		greeting, err := r.ReadString('\n')
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("open a long-lived connection: %w", err)
		}
		if name, _, _ := strings.Cut(greeting, " "); name != pod {
			conn.Close()
			continue
		}
		t := &longConnection{conn: conn, stop: make(chan struct{}), result: make(chan error, 1), began: time.Now()}
		go func() { t.result <- t.run(r) }()
		return t, nil
	}
	return nil, errors.New("open a long-lived connection: 500 attempts did not reach " + pod)
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
		line := fmt.Sprintf("ping %d\n", t.exchanges)
		_ = t.conn.SetDeadline(time.Now().Add(connectTimeout))
		if _, err := t.conn.Write([]byte(line)); err != nil {
			return fmt.Errorf("the long-lived connection broke after %d exchanges: %w", t.exchanges, err)
		}
		echo, err := r.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the long-lived connection broke after %d exchanges: %w", t.exchanges, err)
		}
		if echo != line {
			return fmt.Errorf("the long-lived connection: sent %q, received %q", line, echo)
		}
		t.exchanges++
	}
}

// end closes the connection and returns the number of exchanges, its duration, and what broke it, if anything did.
func (t *longConnection) end() (int, time.Duration, error) {
	close(t.stop)
	err := <-t.result
	return t.exchanges, time.Since(t.began), err
}
