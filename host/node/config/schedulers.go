package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// schedulers are the IPVS schedulers of Linux 6.18 (net/netfilter/ipvs): true are those for which a weight of a policy is only
// zero or not.
var schedulers = map[string]bool{
	"rr": true, "wrr": false, "lc": true, "wlc": false, "lblc": false, "lblcr": false, "sh": false, "dh": true, "sed": false, "nq": false, "mh": false,
	"fo": false, "ovf": false, "twos": false,
}

// schedulerWarnings returns messages about an IPVS scheduler that Linux does not have, or that does not do what policies say.
func (c *Config) schedulerWarnings() []string {
	name := c.IPVS.Scheduler
	ignoresWeights, known := schedulers[name]
	switch {
	case c.Mode != ModeIPVS:
	case !known:
		return []string{fmt.Sprintf("ipvs.scheduler: %q is not a scheduler of Linux%s: the kernel needs a module ip_vs_%s", name, spelling.DidYouMean(name, slices.Collect(maps.Keys(schedulers))), name)}
	case ignoresWeights && len(c.Policies) > 0:
		return []string{fmt.Sprintf("ipvs.scheduler: %s does not use weights: policies can exclude endpoints and nothing else; wrr and wlc use them", name)}
	}
	return nil
}
