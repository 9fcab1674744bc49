package source

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// address parses an address and checks it. It reports false, and a problem, if the address is invalid.
func (p *problems) address(field, s string, check func(netip.Addr) error) (netip.Addr, bool) {
	a, err := parseAddress(s, check)
	if err != nil {
		p.add(field, "%w", err)
	}
	return a, err == nil
}

// parseAddress parses and checks an address.
func parseAddress(s string, check func(netip.Addr) error) (netip.Addr, error) {
	a, err := ipaddr.Parse(s)
	if err == nil {
		err = check(a)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return a, nil
}

// portName accepts the port names that the API server does. They are used in rulesets, logs and metrics.
func (p *problems) portName(field, s string) bool {
	invalid := strings.ContainsFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
	if invalid || len(s) > 63 {
		p.add(field, "%.100q is not a name of at most 63 lowercase letters, digits and '-'", s)
		return false
	}
	return true
}

func (p *problems) port(field string, n int32) (uint16, bool) {
	if n < 1 || n > 65535 {
		p.add(field, "%d is not between 1 and 65535", n)
		return 0, false
	}
	return uint16(n), true
}

// protocol parses a protocol; the API's default is TCP.
func (p *problems) protocol(field string, proto *corev1.Protocol) (model.Protocol, bool) {
	if proto == nil || *proto == "" {
		return model.TCP, true
	}
	m, ok := model.ParseProtocol(string(*proto))
	if !ok {
		p.add(field, "%q is not TCP, UDP or SCTP", *proto)
	}
	return m, ok
}

// podName returns the Pod that an endpoint of a namespace refers to. Pods of other namespaces are not its own: their labels are
// not for the owner of the slice to use.
func podName(ref *corev1.ObjectReference, namespace string) string {
	if ref == nil || ref.Kind != "Pod" || ref.Namespace != "" && ref.Namespace != namespace || len(ref.Name) > 253 {
		return ""
	}
	return ref.Name
}

func deref[T any](p *T, defaultValue T) T {
	if p == nil {
		return defaultValue
	}
	return *p
}
