package metrics

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Pages are what the metrics server shows beside the metrics.
type Pages struct {
	Mode   func() string // on /proxyMode
	Config func() any    // the effective configuration, on /configz, as JSON
	// Profiling: /debug/pprof is there. It tells a lot, and costs while it is asked.
	Profiling bool
	Log       *slog.Logger
}

// maxScrapes bounds what impatient scrapers can cost.
const maxScrapes = 4

// Handler is kube-proxy's metrics server: /metrics, /proxyMode, /healthz (this process answers), /configz, and
// /debug/pprof where it is wanted.
func (m *Metrics) Handler(p Pages) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(p.Log.Handler(), slog.LevelError),
		MaxRequestsInFlight: maxScrapes,
	}))
	text := func(s func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write([]byte(s())) // the client went away
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
		_, _ = w.Write(append(body, '\n')) // the client went away
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
