package planner

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// served returns a Service as it is served: without its external IPs if the settings say so.
func (p *Planner) served(svc *model.Service) *model.Service {
	if p.settings.ExternalIPs != IgnoreExternalIPs || len(svc.ExternalIPs) == 0 {
		return svc
	}
	out := *svc
	out.ExternalIPs = nil
	return &out
}

// warnOfExternalIPs warns once of the first Service that has external IPs, unless the settings say that they are served.
func (p *Planner) warnOfExternalIPs(svc *model.Service) {
	if len(svc.ExternalIPs) == 0 || p.warnedOf == p.settings.ExternalIPs+1 || p.settings.ExternalIPs == AllowExternalIPs {
		return
	}
	p.warnedOf = p.settings.ExternalIPs + 1
	text := "Kubernetes has deprecated them in 1.36, and kube-proxy will ignore them from 1.40 on: set externalIPs to Allow to serve them after an upgrade too, or to Ignore"
	if p.settings.ExternalIPs == IgnoreExternalIPs {
		text = "they are not served, nor those of other Services (externalIPs: Ignore)"
	}
	p.newWarnings = append(p.newWarnings, fmt.Sprintf("Service %s has external IPs: %s", svc.Name, text))
}

// IgnoredExternalIP returns the Service that has an external IP which is not served because of the settings, the first by name.
func (p *Planner) IgnoredExternalIP(a netip.Addr) (name model.Name, found bool) {
	if p.settings.ExternalIPs != IgnoreExternalIPs {
		return name, false
	}
	for n, svc := range p.cluster.Services {
		if slices.Contains(svc.ExternalIPs, a) && (!found || cmp.Compare(n.String(), name.String()) < 0) {
			name, found = n, true
		}
	}
	return name, found
}
