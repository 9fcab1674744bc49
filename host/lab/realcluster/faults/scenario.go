package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	client "github.com/sluice-proxy/sluice/host/lab/realcluster/load"
)

// scenario is what happens while clients connect.
type scenario struct {
	name  string
	group string // in the figure; empty: not in it
	only  realcluster.Proxy
	web   web
	avoid string // a worker whose NodePort the clients outside do not use
	// act returns what else the row is to say.
	act   func(ctx context.Context, b *bed) (note string, err error)
	after time.Duration // of load, when act has returned
	// tell says what the clients' result shows.
	tell func(r *row) string
}

// row is the result of a scenario.
type row struct {
	*scenario `json:"-"`
	Name      string
	Proxy     realcluster.Proxy
	Began     time.Time
	Acted     time.Duration // since the clients' start
	Result    *client.Result
	Note      string
}

func (b *bed) run(ctx context.Context, s *scenario) (*row, error) {
	if err := b.deploy(ctx, s.web); err != nil {
		return nil, err
	}
	c, err := b.start(ctx, s.avoid)
	if err != nil {
		return nil, err
	}
	wait(ctx, before)
	r := &row{scenario: s, Name: s.name, Proxy: b.proxy, Began: c.began, Acted: time.Since(c.began)}
	r.Note, err = s.act(ctx, b)
	if err == nil {
		wait(ctx, max(s.after, before))
	}
	var stopped error
	if r.Result, stopped = c.stop(); err != nil || stopped != nil {
		return nil, errors.Join(err, stopped)
	}
	if s.tell != nil {
		r.Note = strings.TrimPrefix(r.Note+"; "+s.tell(r), "; ")
	}
	return r, nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// repaired returns the time from the action to the end of the last second in which a connection failed.
func (r *row) repaired() time.Duration {
	for i := len(r.Result.Seconds) - 1; i >= 0; i-- {
		if r.Result.Seconds[i].Failed.Total() > 0 {
			return max(time.Duration(i+1)*time.Second-r.Acted, 0).Round(time.Second)
		}
	}
	return 0
}

// kinds returns how connections failed.
func (r *row) kinds() string {
	var out []string
	for _, k := range []struct {
		f    client.Failure
		text string
	}{{client.Refused, "refused"}, {client.TimedOut, "no answer"}, {client.Reset, "reset"}, {client.Closed, "closed"}, {client.Unreachable, "unreachable"}, {client.Other, "other"}} {
		if n := r.Result.Failed[k.f]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, k.text))
		}
	}
	return strings.Join(out, ", ")
}

// String is the row for the log.
func (r *row) String() string {
	return fmt.Sprintf("%s, %s: %d connections, %d failed (%s), last %s after the action; %s",
		r.Proxy, r.name, r.Result.Connections, r.Result.Failed.Total(), r.kinds(), r.repaired(), r.Note)
}
