package health

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// The paths of Handler.
const (
	Healthz = "/healthz"
	Livez   = "/livez"
)

// proxyHealth is the response body of /healthz and /livez, as in kube-proxy.
type proxyHealth struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // /healthz only
	Healthy      bool                    `json:"healthy"`                // of the proxy, regardless of the Node
	Reason       string                  `json:"reason,omitempty"`       // of a 503; kube-proxy has no such field
	Status       map[string]familyHealth `json:"status"`                 // by IP family; both families are programmed together
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler serves /healthz for load balancers and /livez for the kubelet (host/RULES.md, rules 43 and 44): 200, or 503 if an
// update has been pending for too long. /healthz is also 503 if the Node is absent, being deleted or about to be (KEP-3836),
// or if the initial plan is not programmed.
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

	family := familyHealth{body.LastUpdated, body.Healthy}
	body.Reason = reason
	body.Status = map[string]familyHealth{model.IPv4.String(): family, model.IPv6.String(): family}
	code := http.StatusOK
	if path == Healthz {
		body.NodeEligible = &eligible
	}
	if !body.Healthy || path == Healthz && !eligible {
		code = http.StatusServiceUnavailable
	} else {
		body.LastUpdated = now // what was programmed then is still up to date
	}
	if h.opt.OnAnswer != nil {
		h.opt.OnAnswer(path, code)
	}
	writeJSON(w, code, body)
}

// writeJSON writes a JSON response that browsers must not interpret as another content type.
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
	_, _ = w.Write(text) // the client has disconnected
}
