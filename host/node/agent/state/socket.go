// Package state is how other commands read the state of a running agent: a Unix socket, and the JSON that it serves.
package state

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Agent is what the state of an agent is read from.
type Agent struct {
	Engine   *engine.Engine
	NodeName string
	Node     func() *api.Node
	// Status returns the state of the agent; it returns early when the context ends.
	Status func(context.Context) *api.Status
	// ThrottledSince returns since when the calls of a plugin wait because it has used up its share of CPU time, zero if they do
	// not.
	ThrottledSince func(plugin string) time.Time
	// Connections counts open connections. Calls are one at a time, and not often, see Paced.
	Connections CountConnections
	SetLogLevel func(slog.Level) error
	// LogTail returns the last lines of the log.
	LogTail func() []byte
	// Config returns the configuration in force, for encoding/json; Metrics serves the metrics.
	Config  func() any
	Metrics http.Handler
}

// handler serves the resources of the state socket. All are read-only but the level of the log.
func handler(a Agent) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", a.explain)
	mux.HandleFunc("GET /services", a.services)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { answer(w, a.Status(r.Context())) })
	mux.HandleFunc("GET /trace", a.trace)
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, _ *http.Request) { answer(w, &api.LogTail{Lines: string(a.LogTail())}) })
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) { answer(w, a.Config()) })
	mux.Handle("GET /metrics", a.Metrics)
	mux.HandleFunc("GET /plan", func(w http.ResponseWriter, r *http.Request) {
		var current plan.Plan // frontends are replaced, never modified
		if err := a.Engine.Do(r.Context(), func(p *planner.Planner) {
			current = plan.Plan{Global: p.Current().Global, Frontends: maps.Clone(p.Current().Frontends)}
		}); err != nil {
			fail(w, err, http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, plan.Format(&current)) // an error means that the client has disconnected
	})
	mux.HandleFunc("PUT /log-level", func(w http.ResponseWriter, r *http.Request) {
		var level slog.Level
		if err := level.UnmarshalText([]byte(r.URL.Query().Get("level"))); err != nil {
			fail(w, err, http.StatusBadRequest)
			return
		}
		if err := a.SetLogLevel(level); err != nil {
			fail(w, err, http.StatusNotImplemented)
			return
		}
		answer(w, &struct{}{})
	})
	mux.HandleFunc("GET /drains", func(w http.ResponseWriter, r *http.Request) {
		x, err := a.Drains(r.Context())
		if err != nil {
			fail(w, err, http.StatusServiceUnavailable)
			return
		}
		answer(w, x)
	})
	return mux
}

// answer answers with JSON, without secrets: errors may have URLs.
func answer(w http.ResponseWriter, x any) {
	text, err := json.Marshal(x)
	if err != nil {
		fail(w, err, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(printable.Redact(text), '\n')) // an error means that the client has disconnected
}

func fail(w http.ResponseWriter, err error, code int) {
	http.Error(w, printable.Escape(err.Error()), code)
}

// NotFoundError is why a Service has no Explanation.
type NotFoundError struct{ error }

// Explain returns the last decisions about a Service, with Explanation.Requests if requests is set. An error is a NotFoundError,
// or that of the context.
func (a *Agent) Explain(ctx context.Context, name model.Name, requests bool) (x *api.Explanation, err error) {
	var found *planner.Explanation
	if doErr := a.Engine.Do(ctx, func(p *planner.Planner) {
		if found, err = p.Explain(name); err != nil {
			err = NotFoundError{err}
			return
		}
		x = NewExplanation(found, a.Engine.WallTime)
		x.Unprogrammed = a.Engine.Unprogrammed(name)
	}); doErr != nil {
		return nil, doErr
	}
	if err != nil {
		return nil, err
	}
	if a.ThrottledSince != nil {
		AddThrottled(x, a.ThrottledSince)
	}
	AddWithoutPort(x, found)
	if requests {
		if err := AddRequests(x, found); err != nil {
			return nil, err
		}
	}
	x.Node = a.Node()
	return x, nil
}

func (a *Agent) explain(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	x, err := a.Explain(r.Context(), model.Name{Namespace: v.Get("namespace"), Name: v.Get("service")}, v.Has("requests"))
	switch {
	case errors.As(err, new(NotFoundError)):
		fail(w, err, http.StatusNotFound)
	case err != nil:
		fail(w, err, http.StatusServiceUnavailable)
	default:
		answer(w, x)
	}
}

func (a *Agent) trace(w http.ResponseWriter, r *http.Request) {
	v := r.URL.Query()
	q := api.FlowQuery{From: v.Get("from"), To: v.Get("to"), Protocol: v.Get("protocol"), Interface: v.Get("interface"), Namespace: v.Get("namespace")}
	var x api.Traced
	var err error
	if doErr := a.Engine.Do(r.Context(), func(p *planner.Planner) {
		var flow plan.Flow
		if !p.Synced() {
			err = errors.New("the cluster has not been read yet")
		} else if flow, err = Resolve(&q, "", p); err == nil {
			x = Trace(p, flow)
			x.Flow = NewTracedFlow(flow)
		}
	}); doErr != nil {
		fail(w, doErr, http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		fail(w, err, http.StatusBadRequest)
		return
	}
	x.Node, x.Configuration = a.NodeName, a.Node().Configuration.Hash
	answer(w, &x)
}
