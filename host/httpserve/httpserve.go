// Package httpserve keeps an HTTP server on an address: a port that is taken or an address that is not there yet is tried
// again, until it can be had.
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

// Options say what is served where.
type Options struct {
	// Name of the server, which begins its log lines' error: such as "Service shop/web: health check port".
	Name    string
	Network string // tcp, tcp4 or tcp6; "" is tcp
	Address string // host:port
	Handler http.Handler
	Log     *slog.Logger
	// After is time.After, to wait before trying again.
	After func(time.Duration) <-chan time.Time
	// OnListen, when set, is told each time that the server has its address.
	OnListen func(net.Addr)
	// OnError, when set, is told of each new reason why it has not.
	OnError func(error)
}

// How long after a failure the address is tried again; the time doubles from the first to the last.
const (
	minRetryDelay = time.Second
	maxRetryDelay = 30 * time.Second
)

// Bounds on what a client may take. Answers are not bounded: a profile takes as long as was asked for.
const (
	readTimeout = 10 * time.Second
	idleTimeout = time.Minute
	maxHeader   = 16 << 10
)

// ListenAndServeRetry serves until ctx ends, and then lets go of everything before it returns. A failure is logged when its reason
// is new, and so is the end of one.
func ListenAndServeRetry(ctx context.Context, o Options) {
	if o.Network == "" {
		o.Network = "tcp"
	}
	var last string
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		listened, err := o.serve(ctx, func() {
			if last != "" {
				o.Log.Info("listening after all", "server", o.Name, "address", o.Address)
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
			o.Log.Error("not listening; trying again", "err", err)
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
		return false, err // names operation, address and reason
	}
	ready()
	if o.OnListen != nil {
		o.OnListen(l.Addr())
	}
	server := &http.Server{
		Handler: o.Handler, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(o.Log.With("server", o.Name).Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(l)
	return true, errors.Join(err, server.Close())
}
