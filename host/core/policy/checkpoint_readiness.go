package policy

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// savedReadiness is which endpoints of a Service port were ready and are not any more. Those that are ready are not saved: how
// long one of them was ready while sluice did not run is not known, so it is not held.
type savedReadiness struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port,omitempty"`
	Protocol  model.Protocol `json:"protocol"`
	Family    model.Family   `json:"family"`
	Lost      []savedLost    `json:"lost"`
}

type savedLost struct {
	Addr    netip.AddrPort `json:"addr"`
	Pod     string         `json:"pod,omitempty"`
	At      int64          `json:"at"` // Unix milliseconds
	Failing bool           `json:"failing,omitempty"`
}

func (r *readiness) save(key readinessKey) (out savedReadiness, ok bool) {
	out = savedReadiness{key.port.Service.Namespace, key.port.Service.Name, key.port.Port, key.port.Protocol, key.family, nil}
	for i, row := range r.rows {
		if row.lost != 0 {
			out.Lost = append(out.Lost, savedLost{r.addrs.At(i), row.pod, milliseconds(row.lost), row.failing})
		}
	}
	return out, out.Lost != nil
}

func (s *savedReadiness) key() readinessKey {
	return readinessKey{model.PortName{Service: model.Name{Namespace: s.Namespace, Name: s.Service}, Port: s.Port, Protocol: s.Protocol}, s.Family}
}

// restore returns the readiness with its times moved; 0 is none.
func (s *savedReadiness) restore(move func(ms int64) int64) *readiness {
	r := &readiness{}
	slices.SortFunc(s.Lost, func(a, b savedLost) int { return a.Addr.Compare(b.Addr) })
	var addrs []netip.AddrPort
	for _, l := range s.Lost {
		if at := seconds(max(0, move(l.At))); at != 0 && l.Addr.IsValid() {
			addrs = append(addrs, l.Addr)
			r.rows = append(r.rows, readinessRow{pod: l.Pod, lost: at, failing: l.Failing})
		}
	}
	r.addrs = packed(addrs)
	return r
}

func (k readinessKey) compare(l readinessKey) int {
	if c := k.port.Compare(l.port); c != 0 {
		return c
	}
	return int(k.family) - int(l.family)
}
