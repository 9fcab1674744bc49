package planner

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// served returns a Service as it is served: without its external IPs if the settings say so.
func (w *world) served(svc *model.Service) *model.Service {
	if w.settings.ExternalIPs != IgnoreExternalIPs || len(svc.ExternalIPs) == 0 {
		return svc
	}
	out := *svc
	out.ExternalIPs = nil
	return &out
}

// warnOfExternalIPs warns once of the first Service that has external IPs, unless the settings say that they are served.
func (w *world) warnOfExternalIPs(svc *model.Service) {
	if len(svc.ExternalIPs) == 0 || w.warnedOf == w.settings.ExternalIPs+1 || w.settings.ExternalIPs == AllowExternalIPs {
		return
	}
	w.warnedOf = w.settings.ExternalIPs + 1
	text := "Kubernetes has deprecated them in 1.36, and kube-proxy will ignore them from 1.40 on: set externalIPs to Allow to serve them after an upgrade too, or to Ignore"
	if w.settings.ExternalIPs == IgnoreExternalIPs {
		text = "they are not served, nor those of other Services (externalIPs: Ignore)"
	}
	w.newWarnings = append(w.newWarnings, fmt.Sprintf("Service %s has external IPs: %s", svc.Name, text))
}

// IgnoredExternalIP returns the Service that has an external IP which is not served because of the settings, the first by name.
func (w *world) IgnoredExternalIP(a netip.Addr) (name model.Name, found bool) {
	if w.settings.ExternalIPs != IgnoreExternalIPs {
		return name, false
	}
	for n, svc := range w.cluster.Services {
		if slices.Contains(svc.ExternalIPs, a) && (!found || cmp.Compare(n.String(), name.String()) < 0) {
			name, found = n, true
		}
	}
	return name, found
}
