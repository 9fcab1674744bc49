package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// FlowQuery is a connection to trace. From is an IP address or a Pod, To an address and port or a Service with an optional port,
// by name or number; names without a namespace are in Namespace.
type FlowQuery struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Protocol  string `json:"protocol"` // "": that of the Service port, else TCP
	Interface string `json:"interface"`
	Namespace string `json:"-"`
}

// Ends are the ends of a FlowQuery.
type Ends struct {
	From     netip.Addr // the zero value: Pod
	Pod      Name
	To       netip.AddrPort // the zero value: Service
	Service  Name
	Port     string // of the Service, by name or number; "": its only one
	Protocol string // TCP, UDP or SCTP
}

// Check returns an error if a query is invalid whatever the cluster; errors name its fields with the prefix.
func (q *FlowQuery) Check(prefix string) error {
	_, err := q.Ends(prefix)
	return err
}

// Ends parses a query. Errors name its fields with the prefix.
func (q *FlowQuery) Ends(prefix string) (e Ends, err error) {
	invalid := func(field string, err error) (Ends, error) { return e, fmt.Errorf("%s%s: %w", prefix, field, err) }
	if q.From == "" {
		return invalid("from", errors.New("required: an IP address or a Pod"))
	}
	if q.To == "" {
		return invalid("to", errors.New("required: an IP address and a port, or a Service"))
	}
	if e.Protocol = cmp.Or(strings.ToUpper(q.Protocol), "TCP"); !slices.Contains([]string{"TCP", "UDP", "SCTP"}, e.Protocol) {
		return invalid("protocol", fmt.Errorf("%q is not TCP, UDP or SCTP", q.Protocol))
	}
	var isName bool
	if e.Pod, isName = q.name(q.From); !isName {
		if e.From, err = ParseIP(q.From); err != nil {
			return invalid("from", err)
		}
	}
	if e.Service, e.Port, isName = q.service(q.To); isName {
		return e, nil
	}
	to, err := netip.ParseAddrPort(q.To)
	if err != nil {
		return invalid("to", fmt.Errorf("%q is not ADDRESS:PORT, or [ADDRESS]:PORT for IPv6", q.To))
	}
	addr, err := ParseIP(to.Addr().String())
	switch {
	case err != nil:
	case to.Port() == 0:
		err = fmt.Errorf("%q: port 0", q.To)
	case e.From.IsValid() && e.From.Is4() != addr.Is4():
		err = fmt.Errorf("%q is not of the same IP family as %s", q.To, e.From)
	}
	if err != nil {
		return invalid("to", err)
	}
	e.To = netip.AddrPortFrom(addr, to.Port())
	return e, nil
}

// name returns the name that a text is, unless it is meant as an address.
func (q *FlowQuery) name(text string) (Name, bool) {
	if ns, name, ok := strings.Cut(text, "/"); ok {
		return Name{Namespace: ns, Name: name}, true
	}
	// A name has no colon, and one of digits only has no dot; q.Namespace is "" if names are not accepted.
	if q.Namespace == "" || strings.Contains(text, ":") || strings.Contains(text, ".") && strings.Trim(text, "0123456789.") == "" {
		return Name{}, false
	}
	return Name{Namespace: q.Namespace, Name: text}, true
}

// service returns the Service and port that a text is, unless it is meant as an address and port.
func (q *FlowQuery) service(text string) (service Name, port string, ok bool) {
	if _, err := netip.ParseAddrPort(text); err == nil || strings.HasPrefix(text, "[") || strings.Count(text, ":") > 1 {
		return Name{}, "", false
	}
	name, port, _ := strings.Cut(text, ":")
	service, ok = q.name(name)
	return service, port, ok
}

// ParseIP parses the address of a packet.
func ParseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q: must not have a zone", s)
	case a.IsUnspecified():
		return netip.Addr{}, fmt.Errorf("%q is the unspecified address", s)
	}
	return a.Unmap(), nil
}
