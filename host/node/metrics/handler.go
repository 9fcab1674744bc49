package metrics

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Pages configures the pages of the metrics server other than /metrics.
type Pages struct {
	Mode   func() string // /proxyMode
	Config func() any    // /configz: the effective configuration, encoded as JSON
	// Profiling enables /debug/pprof, which exposes internals of the process and uses CPU while it is requested.
	Profiling bool
	Log       *slog.Logger
}

// Handler serves the paths of kube-proxy's metrics server: /metrics, /proxyMode, /healthz (always ok), /configz, and, if
// enabled, /debug/pprof.
func (m *Metrics) Handler(p Pages) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", newScrapes(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelError),
	})))
	text := func(s func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write([]byte(s())) // the client has disconnected
		}
	}
	mux.HandleFunc("GET /proxyMode", text(p.Mode))
	mux.HandleFunc("GET /healthz", text(func() string { return "ok" }))
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.MarshalIndent(p.Config(), "", "  ")
		if err != nil {
			http.Error(w, "configz: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // the client has disconnected
	})
	if p.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}
