package planner

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

const (
	// shedTime is how long a shed takes.
	shedTime = time.Minute
	// shedStep is the minimum time from the end of a step of the sheds to the next one.
	shedStep = time.Second
	// shedGrace is for how long a shed may have waited before its first step. One that is older has been going on before a
	// restart, and continues where it would be: what it has reset must not be reset again.
	shedGrace = 5 * time.Second
	// shedRetry is the wait after a step that failed.
	shedRetry = 10 * time.Second
)

// shedKey identifies a shed: the cluster pool and the local pool of a Service port share the connections of an endpoint.
type shedKey struct {
	port     model.PortName
	endpoint netip.AddrPort
}

// shed resets part of an endpoint's connections, in steps that are spread over shedTime. A step that is late resets more, up to
// limit, and the later ones follow.
type shed struct {
	at        int64  // when it began, Unix milliseconds
	share     uint64 // to be reset in all, of plan.ShedSpace
	limit     uint64 // of a step
	done      uint64 // what the steps have reset so far
	pending   uint64 // done after the step that is running
	frontends []plan.Key
}

// wantedShed is a shed that the policy of a Service asks for.
type wantedShed struct {
	at        int64
	permille  uint16 // asked for
	share     uint64
	limit     uint64
	bounded   bool // share is less than asked for
	frontends []plan.Key
}

// ShedBounded is a shed that a policy's limit makes smaller.
type ShedBounded struct {
	Service model.Name
	Policy  string
	Limit   int // percent per second
}

// String describes the bound. The text is the same each time, so that Events can be aggregated.
func (b *ShedBounded) String() string {
	return fmt.Sprintf("policy %s resets fewer established connections than its plugins ask for: maxShedPercentPerSecond is %d",
		b.Policy, b.Limit)
}

// EffectiveShed returns how many permille of the connections are reset of those that are asked for, given the limit in percent
// per second.
func EffectiveShed(permille uint16, limit int) uint16 {
	return uint16(min(int(permille), abi.MaxShedPermille, limit*10*int(shedTime/time.Second)))
}

// due returns what should be reset at a time.
func (w *wantedShed) due(nowMS int64) uint64 { return dueShare(w.at, w.share, nowMS) }

func dueShare(at int64, share uint64, nowMS int64) uint64 {
	elapsed := min(max(nowMS-at, 0), shedTime.Milliseconds())
	return share * uint64(elapsed) / uint64(shedTime.Milliseconds())
}

func (k shedKey) compare(l shedKey) int {
	return cmp.Or(k.port.Compare(l.port), k.endpoint.Compare(l.endpoint))
}
