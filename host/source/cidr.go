package source

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// ServiceCIDR converts a ServiceCIDR. The value is never nil. Conditions are ignored: a range that is being deleted is in
// use until the object is gone.
func ServiceCIDR(o *networkingv1.ServiceCIDR) (*model.ServiceCIDR, []Problem) {
	p := problems{object: "ServiceCIDR " + o.Name}
	out := &model.ServiceCIDR{Name: o.Name}
	for i, s := range o.Spec.CIDRs {
		field := fmt.Sprintf("spec.cidrs[%d]", i)
		c, err := ipaddr.ParsePrefix(s)
		family := func(other netip.Prefix) bool { return model.FamilyOf(other.Addr()) == model.FamilyOf(c.Addr()) }
		switch {
		case err != nil:
			p.add(field, "%w", err)
		case c.Bits() == 0:
			// It would drop packets to every address that is not a cluster IP.
			p.add(field, "%s contains all addresses", c)
		case slices.ContainsFunc(out.CIDRs, family):
			p.add(field, "%s: a ServiceCIDR has one CIDR of each family", c)
		default:
			out.CIDRs = append(out.CIDRs, c)
		}
	}
	return out, p.all()
}
