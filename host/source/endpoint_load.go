package source

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Bounds of an EndpointLoad. The kind's schema has the same.
const (
	maxLoadEndpoints = 1000
	maxLoadValues    = 32
)

// loadValue is a decimal number that is not negative, without an exponent.
var loadValue = regexp.MustCompile(`^[0-9]{1,12}([.][0-9]{1,9})?$`)

// EndpointLoad converts load that the endpoints of a Service report: the fields with these names, sorted; nil: all. The value is
// never nil.
func EndpointLoad(o *v1alpha1.EndpointLoad, fields []string) (*model.EndpointLoad, []Problem) {
	p := problems{object: "EndpointLoad " + o.Namespace + "/" + o.Name}
	v := &model.EndpointLoad{Values: map[netip.Addr]map[string]string{}}
	endpoints := o.Endpoints
	if len(endpoints) > maxLoadEndpoints {
		p.add("endpoints", "%d, at most %d are used", len(endpoints), maxLoadEndpoints)
		endpoints = endpoints[:maxLoadEndpoints]
	}
	for i := range endpoints {
		field := fmt.Sprintf("endpoints[%d]", i)
		addr, err := ipaddr.Parse(endpoints[i].Address)
		if err != nil {
			p.add(field+".address", "%w", err)
			continue
		}
		if values := p.load(field, endpoints[i].Values, fields); values != nil {
			v.Values[addr] = values
		}
	}
	return v, p.all()
}

// load returns the values of fields, nil if there are none.
func (p *problems) load(field string, all map[string]v1alpha1.LoadValue, fields []string) (out map[string]string) {
	if len(all) > maxLoadValues {
		p.add(field+".values", "%d, at most %d are allowed: none is used", len(all), maxLoadValues)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := string(all[name])
		if _, wanted := slices.BinarySearch(fields, name); fields != nil && !wanted {
			continue
		}
		switch at := fmt.Sprintf("%s.values[%.80s]", field, name); {
		case !abi.IsLoadName(name):
			p.add(at, "no field of a load report that plugins can declare")
		case !loadValue.MatchString(value):
			p.add(at, "%.40q is not a decimal number of at least 0, without an exponent", value)
		default:
			if out == nil {
				out = map[string]string{}
			}
			out[name] = value
		}
	}
	return out
}
