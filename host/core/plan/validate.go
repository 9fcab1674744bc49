package plan

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// maxDeadline is the last millisecond of the year 9999, the latest that RFC 3339 can represent.
const maxDeadline = 253402300799999

// Validate checks the constraints documented on the types of this package. It returns all violations, joined; each names frontend
// and field. In a plan without frontends MasqueradeMark may be 0.
func Validate(p *Plan) error {
	errs := p.Global.check(len(p.Frontends) == 0)
	for _, k := range p.Keys() {
		errs = append(errs, checkFrontend(k, p.Frontends[k])...)
	}
	errs = append(errs, p.checkAffinity()...)
	return errors.Join(errs...)
}

func (g *Global) check(empty bool) []error {
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("global: "+field+": "+format, args...))
	}
	addrs := func(field string, list []netip.Addr, loopback bool, otherwise string) {
		for i, a := range list {
			if why := badAddr(a); why != "" {
				fail(field, "%s: %s", a, why)
			} else if a.IsLoopback() != loopback {
				fail(field, "%s: %s", a, otherwise)
			}
			if i > 0 && list[i-1].Compare(a) >= 0 {
				fail(field, "%s after %s: not sorted and unique", a, list[i-1])
			}
		}
	}
	addrs("node-port-addresses", g.NodePortAddrs, false, "a loopback address")
	addrs("localhost-addresses", g.LocalhostAddrs, true, "no loopback address")
	for _, why := range badPrefixes(g.PodSources) {
		fail("pod-sources", "%s", why)
	}
	for _, why := range badPrefixes(g.ServiceCIDRs) {
		fail("service-cidrs", "%s", why)
	}
	for _, why := range badPrefixes(g.NoMasquerade) {
		fail("no-masquerade-cidrs", "%s", why)
	}
	for i, name := range g.PodInterfaces {
		if !isInterface(name) {
			fail("pod-interfaces", "%q: want an interface name, or a prefix of one and *", name)
		}
		if i > 0 && g.PodInterfaces[i-1] >= name {
			fail("pod-interfaces", "%s after %s: not sorted and unique", name, g.PodInterfaces[i-1])
		}
	}
	if n := bits.OnesCount32(g.MasqueradeMark); n != 1 && !(empty && n == 0) {
		fail("masquerade-mark", "%#x: want exactly one bit", g.MasqueradeMark)
	}
	return errs
}

func checkFrontend(k Key, f *Frontend) []error {
	if f == nil {
		return []error{fmt.Errorf("frontend %s: nil", keyName(k))}
	}
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s %s: "+field+": "+format, append([]any{f.Owner, keyName(k)}, args...)...))
	}
	if f.Key != k {
		fail("key", "%s in the frontend", keyName(f.Key))
	}
	if why := badAddr(k.Addr); why != "" && !(k.Addr == netip.IPv4Unspecified() || k.Addr == netip.IPv6Unspecified()) {
		fail("address", "%s", why)
	}
	if k.Port == 0 {
		fail("port", "0")
	}
	if !knownProtocol(k.Protocol) {
		fail("protocol", "%s", k.Protocol)
	}
	if f.LongLived && k.Protocol == model.SCTP {
		fail("flows", "the kernel has no flowtables for SCTP")
	}
	if f.Owner.Protocol != k.Protocol {
		fail("owner", "its protocol is %s", f.Owner.Protocol)
	}
	if !isName(f.Owner.Service.Namespace) || !isName(f.Owner.Service.Name) {
		fail("owner", "%q is not the name of a Service", f.Owner.Service.String())
	}
	if f.Owner.Port != "" && !isName(f.Owner.Port) {
		fail("owner", "%q is not the name of a port", f.Owner.Port)
	}
	if int(f.Kind) >= len(kindNames) {
		fail("kind", "%s", f.Kind)
	} else if (f.Kind == NodePort) != k.IsNodePort() {
		fail("kind", "%s at address %s", f.Kind, k.Addr)
	}
	if int(f.Masquerade) >= len(masqueradeNames) {
		fail("masquerade", "%s", f.Masquerade)
	}
	if int(f.Balance) >= len(balanceNames) {
		fail("balance", "%s", f.Balance)
	}
	if f.Affinity < 0 {
		fail("affinity", "%s", f.Affinity)
	}
	if f.SourceRanges != nil && len(f.SourceRanges) == 0 {
		fail("source-ranges", "empty, which allows no source; nil allows all")
	}
	for _, why := range badList(f.SourceRanges) {
		fail("source-ranges", "%s", why)
	}
	for _, r := range f.SourceRanges {
		if model.FamilyOf(r.Addr()) != k.Family() {
			fail("source-ranges", "%s is not %s", r, k.Family())
		}
	}
	for _, why := range badPool(&f.Pool, k.Family()) {
		fail("pool", "%s", why)
	}
	if f.Outside != nil {
		if f.Kind == ClusterIP {
			fail("outside", "a ClusterIP has one pool for every source")
		}
		for _, why := range badPool(f.Outside, k.Family()) {
			fail("outside", "%s", why)
		}
	}
	return errs
}

func badPool(p *Pool, family model.Family) []string {
	var bad []string
	fail := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if int(p.Verdict) >= len(verdictNames) {
		fail("verdict: %s", p.Verdict)
	} else if total := p.Total(); (p.Verdict == Forward) != (total > 0) {
		fail("verdict: %s with a total weight of %d", p.Verdict, total)
	}
	for i, m := range p.Endpoints {
		if why := badAddr(m.Addr.Addr()); why != "" {
			fail("endpoint %s: address: %s", m.Addr, why)
		} else if model.FamilyOf(m.Addr.Addr()) != family {
			fail("endpoint %s: address: not %s", m.Addr, family)
		}
		if m.Addr.Port() == 0 {
			fail("endpoint %s: port: 0", m.Addr)
		}
		if int(m.Phase) >= len(phaseNames) {
			fail("endpoint %s: phase: %s", m.Addr, m.Phase)
		}
		if m.Deadline < 0 || m.Deadline > maxDeadline {
			fail("endpoint %s: deadline: %d ms since 1970: not a time until the year 9999", m.Addr, m.Deadline)
		}
		if i > 0 && p.Endpoints[i-1].Addr.Compare(m.Addr) >= 0 {
			fail("endpoint %s after %s: not sorted and unique", m.Addr, p.Endpoints[i-1].Addr)
		}
	}
	return bad
}

// checkAffinity checks that all frontends of a Service port have the same timeout: they share affinity entries.
func (p *Plan) checkAffinity() []error {
	var errs []error
	first := map[model.PortName]*Frontend{}
	for _, k := range p.Keys() {
		f := p.Frontends[k]
		if f == nil {
			continue
		}
		g := first[f.Owner]
		if g == nil {
			first[f.Owner] = f
		} else if f.Affinity != g.Affinity {
			errs = append(errs, fmt.Errorf("%s %s: affinity: %s, but %s at %s of the same Service port",
				f.Owner, keyName(k), f.Affinity, g.Affinity, keyName(g.Key)))
		}
	}
	return errs
}

// badAddr returns why an address is not valid in packets, "" if it is.
func badAddr(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "no address"
	case a.Is4In6():
		return "an IPv4 address in IPv6 form"
	case a.Zone() != "":
		return "has a zone"
	case a.IsUnspecified():
		return "unspecified"
	}
	return ""
}

// badPrefixes returns what is wrong with a list of ranges of which none may contain another one.
func badPrefixes(list []netip.Prefix) []string {
	bad := badList(list)
	if len(bad) > 0 {
		return bad
	}
	// The list is sorted: between a range and the ranges it contains there are only other ranges it contains.
	last := 0
	for i := 1; i < len(list); i++ {
		if prefixContains(list[last], list[i]) {
			bad = append(bad, fmt.Sprintf("%s is contained in %s", list[i], list[last]))
			continue
		}
		last = i
	}
	return bad
}

// badList returns what is wrong with a list of ranges.
func badList(list []netip.Prefix) []string {
	var bad []string
	for i, p := range list {
		switch {
		case !p.IsValid():
			bad = append(bad, p.String()+": not a range")
		case p.Addr().Is4In6():
			bad = append(bad, p.String()+": an IPv4 range in IPv6 form")
		case p != p.Masked():
			bad = append(bad, p.String()+": host bits are set")
		case i > 0 && list[i-1].Compare(p) >= 0:
			bad = append(bad, fmt.Sprintf("%s after %s: not sorted and unique", p, list[i-1]))
		}
	}
	return bad
}

func knownProtocol(p model.Protocol) bool {
	return p == model.TCP || p == model.UDP || p == model.SCTP
}

// isName accepts more than Kubernetes names, but nothing that makes the text form ambiguous.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("-._", rune(c))) {
			return false
		}
	}
	return s != ""
}

// isInterface accepts printable interface names of Linux (1 to 15 bytes, no slash, no space), optionally followed by *.
func isInterface(s string) bool {
	stem := strings.TrimSuffix(s, "*")
	return stem != "" && len(stem) <= 15 && stem != "." && stem != ".." &&
		!slices.ContainsFunc([]byte(stem), func(c byte) bool { return c <= ' ' || c >= 0x7f || c == '/' || c == '*' || c == '#' })
}
