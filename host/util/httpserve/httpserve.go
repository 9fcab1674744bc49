// Package httpserve runs an HTTP server on an address and retries while the port is in use or the address does not exist.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Options of a server.
type Options struct {
	// Name is the prefix of the server's errors, such as "Service shop/web: spec.healthCheckNodePort".
	Name    string
	Network string // tcp, tcp4 or tcp6; "" means tcp
	Address string // host:port
	Handler http.Handler
	// Limiter bounds the connections. Servers may share one. nil: one of its own, for ownConns.
	Limiter *Limiter
	Log     *slog.Logger
	// After is time.After or a fake; it times the retries.
	After func(time.Duration) <-chan time.Time
	// OnListen, if not nil, is called each time the server starts to listen.
	OnListen func(net.Addr)
	// OnError, if not nil, is called with each error that differs from the previous one.
	OnError func(error)
}

// Delay before a retry: it doubles with each failure, from the minimum to the maximum.
const (
	minRetryDelay = time.Second
	maxRetryDelay = 30 * time.Second
)

// ownConns is how many connections a server keeps that has no Limiter.
const ownConns = 16

// Limits on clients. Together with those of a Limiter they bound the memory that clients take: some 40 KiB for each
// connection.
const (
	headerTimeout = 5 * time.Second  // from the first byte of a request to the end of its header
	readTimeout   = 10 * time.Second // to the end of its body, which no handler reads
	writeTimeout  = 30 * time.Second // from the end of the header to that of the response; a profile takes as long as requested
	idleTimeout   = time.Minute      // between requests
	maxHeader     = 16 << 10         // bytes; net/http adds 4 KiB
)

// NewServer returns an HTTP server with limits on slow clients and large requests. Its listener needs a Limiter.
func NewServer(name string, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.With("server", name).Handler(), slog.LevelDebug),
	}
}

// ListenAndServeRetry serves until ctx ends, and closes the listener and all connections before it returns. An error is
// logged if it differs from the previous one, and so is recovery.
func ListenAndServeRetry(ctx context.Context, o Options) {
	if o.Network == "" {
		o.Network = "tcp"
	}
	if o.Limiter == nil {
		o.Limiter = NewLimiter(ownConns, nil)
	}
	var last string
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		listened, err := o.serve(ctx, func() {
			if last != "" {
				o.Log.Info("listening after retries", "server", o.Name, "address", o.Address)
				last = ""
			}
		})
		if ctx.Err() != nil {
			return
		}
		if listened {
			delay = minRetryDelay
		}
		if err := fmt.Errorf("%s: %w", o.Name, err); err.Error() != last {
			last = err.Error()
			o.Log.Error("failed to listen; retrying", "err", err)
			if o.OnError != nil {
				o.OnError(err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-o.After(delay):
		}
	}
}

// serve listens and serves once.
func (o *Options) serve(ctx context.Context, ready func()) (listened bool, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, o.Network, o.Address)
	if err != nil {
		return false, err // net's error names operation, address and reason
	}
	ready()
	if o.OnListen != nil {
		o.OnListen(l.Addr())
	}
	server := NewServer(o.Name, o.Handler, o.Log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(o.Limiter.Listener(l))
	return true, errors.Join(err, server.Close())
}
