package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// The paths of Handler.
const (
	Healthz = "/healthz"
	Livez   = "/livez"
)

// proxyHealth is the body of /healthz and /livez: kube-proxy's.
type proxyHealth struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // /healthz only
	Healthy      bool                    `json:"healthy"`                // of the proxy, whatever the Node is
	Reason       string                  `json:"reason,omitempty"`       // of a 503; kube-proxy has none
	Status       map[string]familyHealth `json:"status"`                 // by IP family; both are programmed together
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler answers /healthz, on which load balancers and clouds look, and /livez, on which the kubelet does: 200, or 503
// when an update has waited too long to be programmed. /healthz is 503 also when the Node is not there, or is about to
// go (KEP-3836), or when the kernel has not held its first plan yet.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(Healthz, func(w http.ResponseWriter, _ *http.Request) { h.serveHealth(w, Healthz) })
	mux.HandleFunc(Livez, func(w http.ResponseWriter, _ *http.Request) { h.serveHealth(w, Livez) })
	return mux
}

func (h *Health) serveHealth(w http.ResponseWriter, path string) {
	now := h.opt.Now()
	h.mu.Lock()
	body := proxyHealth{LastUpdated: h.lastSynced, CurrentTime: now, Healthy: h.healthy(now)}
	eligible := h.eligible.planned && h.eligible.programmed
	reason := h.reason(now, path == Healthz)
	h.mu.Unlock()
	if reason != "" && h.opt.StaleReason != nil {
		if away := h.opt.StaleReason(); away != "" {
			reason += "; " + away
		}
	}

	half := familyHealth{body.LastUpdated, body.Healthy}
	body.Reason = reason
	body.Status = map[string]familyHealth{model.IPv4.String(): half, model.IPv6.String(): half}
	code := http.StatusOK
	if path == Healthz {
		body.NodeEligible = &eligible
	}
	if !body.Healthy || path == Healthz && !eligible {
		code = http.StatusServiceUnavailable
	} else {
		body.LastUpdated = now // what was held then is up to date now
	}
	if h.opt.OnAnswer != nil {
		h.opt.OnAnswer(path, code)
	}
	writeJSON(w, code, body)
}

// writeJSON answers with a body that no browser may take for anything else.
func writeJSON(w http.ResponseWriter, code int, body any) {
	text, err := json.MarshalIndent(body, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client went away
}
