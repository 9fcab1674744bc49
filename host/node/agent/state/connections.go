package state

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// connections describes what a Service asks for its connections. What concerns a protocol that no port has is left out.
func connections(s *model.Service) (out []string) {
	has := func(protocol model.Protocol) bool {
		return slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.Protocol == protocol })
	}
	if s.Affinity != 0 {
		out = append(out, fmt.Sprintf("of a client go to the same endpoint until it has opened none for %s (sessionAffinity)", s.Affinity))
	}
	if s.RetryRefused && has(model.TCP) {
		out = append(out, "refused over TCP are tried again once (annotation "+source.AnnotationRefused+")")
	}
	switch {
	case !s.KeepUDP || !has(model.UDP):
	case s.MaxKeepUDP == 0:
		out = append(out, "over UDP are kept while their endpoint terminates (annotation "+source.AnnotationUDPDrain+")")
	default:
		out = append(out, fmt.Sprintf("over UDP are kept while their endpoint terminates, for at most %s after it serves no more (annotation %s)",
			s.MaxKeepUDP, source.AnnotationUDPConnectionHandling))
	}
	return out
}
