package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
)

const defaultSocket = "/run/sluice/sluice.sock"

func registerSocket(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", defaultSocket, "socket over which the running sluice tells its state")
}

// serveState answers questions about the running engine on a Unix socket that only its owner may open. An empty path
// serves nothing.
func serveState(path string, e *engine.Engine, log *slog.Logger) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("state socket: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("state socket %s: another sluice is answering on it; it must stop first (or give --socket)", path)
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
	server := &http.Server{Handler: stateHandler(e), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("state socket", "err", err)
		}
	}()
	return func() { server.Close() }, nil
}

func stateHandler(e *engine.Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) {
		name := model.Name{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("service")}
		var x *explanation
		var err error
		if doErr := e.Do(r.Context(), func(p *planner.Planner) {
			var found *planner.Explanation
			if found, err = p.Explain(name); err == nil {
				x = newExplanation(found)
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
		_ = json.NewEncoder(w).Encode(x) // the client went away
	})
	return mux
}

// askExplain asks the running sluice.
func askExplain(ctx context.Context, socket string, name model.Name) (*explanation, error) {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}, Timeout: 10 * time.Second}
	q := url.Values{"namespace": {name.Namespace}, "service": {name.Name}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sluice/explain?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return nil, fmt.Errorf("no sluice answers on %s (%w); give --socket, or --kubeconfig or --source to plan without it", socket, op.Err)
		}
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	x := new(explanation)
	if err := json.NewDecoder(resp.Body).Decode(x); err != nil {
		return nil, fmt.Errorf("the answer of the running sluice: %w", err)
	}
	return x, nil
}
