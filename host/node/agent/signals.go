package agent

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/node/config"
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

// threadCPU returns the CPU time that the calling thread has used, in user space and in the kernel.
func threadCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
