package agent

import (
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// outcomeNeeds returns the needs of plugins for which the outcomes of connections are counted. In mode nftables open connections need
// them too: between two dumps of the connection tracking table, the attempts since the last one are added. IPVS counts open
// connections itself.
func outcomeNeeds(mode string) uint32 {
	if mode == config.ModeIPVS {
		return abi.NeedOutcomes
	}
	return abi.NeedOutcomes | abi.NeedConnections
}
