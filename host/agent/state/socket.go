// Package state is how other commands read the state of a running agent: a Unix socket, and the JSON that it serves.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
)

// DefaultSocket is the path of the state socket if none is configured.
const DefaultSocket = "/run/sluice/sluice.sock"

// Serve serves the state of an engine on a Unix socket that only its owner may open. With an empty path it serves nothing.
func Serve(path string, e *engine.Engine, log *slog.Logger) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("state socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("state socket %s: in use by another sluice; stop it first, or set --socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("state socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("state socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("state socket: %w", err)
	}
	server := &http.Server{Handler: handler(e), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving the state socket failed", "err", err)
		}
	}()
	return func() { server.Close() }, nil
}

func handler(e *engine.Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		name := model.Name{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("service")}
		var x *Explanation
		var err error
		if doErr := e.Do(r.Context(), func(p *planner.Planner) {
			var found *planner.Explanation
			if found, err = p.Explain(name); err == nil {
				x = NewExplanation(found, e.WallTime)
			}
		}); doErr != nil {
			http.Error(w, doErr.Error(), http.StatusServiceUnavailable)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(x) // an error means that the client has disconnected
	})
	return mux
}
