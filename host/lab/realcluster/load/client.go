package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Client makes connections to Targets, in turn, until Run's context ends or Count have been made.
type Client struct {
	Targets []string // addresses with ports
	// Rate is how many connections begin each second, whatever becomes of the others. Each asks once.
	Rate int
	// Long is, in place of Rate, a number of connections that stay. Each asks every Every, and is replaced when it breaks.
	Long  int
	Every time.Duration
	// Count ends the client, unless it is zero.
	Count   int
	Timeout time.Duration // until connected, and of each answer
	// Failed is called, if not nil, as soon as a connection has failed.
	Failed func(error)
}

// Check returns what is wrong with the settings.
func (c *Client) Check() error {
	switch {
	case len(c.Targets) == 0:
		return errors.New("no address to connect to")
	case (c.Rate > 0) == (c.Long > 0):
		return errors.New("either a rate or a number of long connections is needed")
	case c.Long > 0 && c.Every <= 0:
		return errors.New("long connections need an interval")
	case c.Timeout <= 0:
		return errors.New("a timeout is needed")
	}
	for _, t := range c.Targets {
		if _, _, err := net.SplitHostPort(t); err != nil {
			return fmt.Errorf("address %s: %w", t, err)
		}
	}
	return nil
}

// Run returns when all connections have ended. Those that the end of the context ends have not failed.
func (c *Client) Run(ctx context.Context) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	run := &clientRun{Client: c, recorder: newRecorder()}
	if c.Rate > 0 {
		run.atRate(ctx)
	} else {
		run.keep(ctx)
	}
	return run.finish(), nil
}

type clientRun struct {
	*Client
	mu sync.Mutex
	*recorder
	begun int
}

// next returns the address of the next connection, and false at the end.
func (r *clientRun) next(ctx context.Context) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.Count > 0 && r.begun == r.Count {
		return "", false
	}
	r.begun++
	return r.Targets[(r.begun-1)%len(r.Targets)], true
}

// record calls f alone.
func (r *clientRun) record(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *clientRun) atRate(ctx context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	for i := 0; ; i++ {
		// From the start, so that the rate is met even if this goroutine is late.
		if !sleep(ctx, time.Until(r.began.Add(time.Duration(i)*time.Second/time.Duration(r.Rate)))) {
			return
		}
		to, ok := r.next(ctx)
		if !ok {
			return
		}
		open.Go(func() {
			if conn := r.open(to); conn != nil {
				conn.Close()
			}
		})
	}
}

func (r *clientRun) keep(ctx context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	for range r.Long {
		open.Go(func() {
			for {
				to, ok := r.next(ctx)
				if !ok {
					return
				}
				if conn := r.open(to); conn != nil {
					r.ask(ctx, conn)
					conn.Close()
				} else if !sleep(ctx, 100*time.Millisecond) { // as clients do
					return
				}
			}
		})
	}
}

// ask asks until the end or until the connection breaks.
func (r *clientRun) ask(ctx context.Context, conn *connection) {
	for sleep(ctx, r.Every) {
		if _, err := conn.get(r.Timeout); err != nil {
			r.record(func() { r.broke(classify(err)) })
			return
		}
	}
}

// open connects and asks for the first time. It returns nil if that failed.
func (r *clientRun) open(to string) *connection {
	began := time.Now()
	conn, err := dial(to, r.Timeout)
	var server string
	if err == nil {
		if server, err = conn.get(r.Timeout); err != nil {
			conn.Close()
		}
	}
	took := time.Since(began)
	if err != nil {
		r.record(func() { r.failed(err, to, began) })
		if r.Failed != nil {
			r.Failed(err)
		}
		return nil
	}
	r.record(func() { r.answered(server, took) })
	return conn
}

// connection asks with HTTP/1.1.
type connection struct {
	net.Conn
	to string
	r  *bufio.Reader
}

func dial(to string, timeout time.Duration) (*connection, error) {
	conn, err := net.DialTimeout("tcp", to, timeout)
	if err != nil {
		return nil, err
	}
	// Closed without TIME_WAIT: a port that conntrack and the server still remember would not be a new connection.
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		conn.Close()
		return nil, err
	}
	return &connection{conn, to, bufio.NewReader(conn)}, nil
}

// get returns the server's name.
func (c *connection) get(timeout time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", c.to); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return strings.TrimSpace(string(body)), err
}

// sleep reports whether the context goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
