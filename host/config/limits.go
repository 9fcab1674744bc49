package config

import (
	"fmt"
	"net/netip"
)

// ServiceLimits bound what one Service may make every node program. See defaults.yaml.
type ServiceLimits struct {
	Frontends    int
	Endpoints    int
	SourceRanges int
	Elements     int
}

func defaultServiceLimits() ServiceLimits {
	return ServiceLimits{Frontends: 5000, Endpoints: 20_000, SourceRanges: 1000, Elements: 500_000}
}

type serviceLimitsEntry struct {
	Frontends    *int32 `json:"frontends"`
	Endpoints    *int32 `json:"endpoints"`
	SourceRanges *int32 `json:"sourceRanges"`
	Elements     *int32 `json:"elements"`
}

func (l *ServiceLimits) effective() serviceLimitsEntry {
	number := func(n int) *int32 { v := int32(n); return &v }
	return serviceLimitsEntry{number(l.Frontends), number(l.Endpoints), number(l.SourceRanges), number(l.Elements)}
}

// serviceLimits parses the limits. Their maxima are what a data plane can program: the slots of a pool, and the source ranges
// of a transaction.
func (p *parser) serviceLimits(e *serviceLimitsEntry, l *ServiceLimits) {
	for _, f := range []struct {
		name  string
		value *int32
		limit int32
		to    *int
	}{
		{"frontends", e.Frontends, 200_000, &l.Frontends},
		{"endpoints", e.Endpoints, 65_536, &l.Endpoints},
		{"sourceRanges", e.SourceRanges, 5000, &l.SourceRanges},
		{"elements", e.Elements, 10_000_000, &l.Elements},
	} {
		switch {
		case f.value == nil:
		case *f.value < 1 || *f.value > f.limit:
			p.errorf("serviceLimits."+f.name, "%d is not between 1 and %d", *f.value, f.limit)
		default:
			*f.to = int(*f.value)
		}
	}
}

// cidrs parses a field that is a list of CIDRs.
func (p *parser) cidrs(field string, list []string) (out []netip.Prefix) {
	for i, s := range list {
		if r, ok := p.prefix(fmt.Sprintf("%s[%d]", field, i), s); ok {
			out = append(out, r)
		}
	}
	return out
}
