package policy

import (
	"math"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Signals is what this node has counted of its connections to endpoints. Requests get it as it is when they are built; it is not
// in their digest.
type Signals interface {
	// OutcomesWindow returns the number of the last reading of outcomes and the length of its window, 0 if there is none or
	// it is too old.
	OutcomesWindow(now time.Time) (reading uint64, window time.Duration)
	// Outcomes returns the outcomes of connections to an endpoint, and the number of the last reading with a new failure, 0 for
	// none.
	Outcomes(model.EndpointKey) (o abi.Outcomes, failedAt uint64)
	// ConnectionsAge returns how old the numbers of open connections are; ok is false if they are not counted.
	ConnectionsAge(now time.Time) (age time.Duration, ok bool)
	// Connections returns the number of open connections to an endpoint; ok is false if it is not known.
	Connections(model.EndpointKey) (n uint32, ok bool)
}

// known is what is known of connections.
type known struct {
	// Signals returns it. Nil: nothing is known.
	Signals Signals
}

// outcomesOf identifies the outcomes in a request.
type outcomesOf struct {
	reading  uint64
	failedAt uint64 // the last reading with a new failure of one of its endpoints
}

// addSignals adds to a request what the plugins of the chain need to know of connections.
func (k *known) addSignals(r *abi.Request, needs uint32, now time.Time) (o outcomesOf) {
	if k.Signals == nil {
		return o
	}
	if needs&abi.NeedOutcomes != 0 {
		o = k.addOutcomes(r, now)
	}
	if needs&abi.NeedConnections != 0 {
		k.addConnections(r, now)
	}
	return o
}

func (k *known) addOutcomes(r *abi.Request, now time.Time) (o outcomesOf) {
	reading, window := k.Signals.OutcomesWindow(now)
	if window <= 0 {
		return o
	}
	o.reading, r.OutcomesWindowMS = reading, milliseconds32(window)
	for i := range r.Endpoints {
		ep := &r.Endpoints[i]
		var failedAt uint64
		ep.Outcomes, failedAt = k.Signals.Outcomes(model.EndpointKey{Addr: ep.Addr, Protocol: model.Protocol(r.Protocol)})
		o.failedAt = max(o.failedAt, failedAt)
	}
	return o
}

func (k *known) addConnections(r *abi.Request, now time.Time) {
	age, ok := k.Signals.ConnectionsAge(now)
	if !ok {
		return
	}
	r.ConnectionsAgeMS = min(milliseconds32(age), abi.NoAge-1)
	for i := range r.Endpoints {
		ep := &r.Endpoints[i]
		if n, ok := k.Signals.Connections(model.EndpointKey{Addr: ep.Addr, Protocol: model.Protocol(r.Protocol)}); ok {
			ep.Connections = min(n, abi.ConnectionsUnknown-1)
		}
	}
}

// milliseconds32 returns a duration in milliseconds, from 1 for a positive one.
func milliseconds32(d time.Duration) uint32 {
	return uint32(min(max(0, (d+time.Millisecond-1).Milliseconds()), math.MaxUint32))
}

// failing reports whether connections from this node to an endpoint fail: in the last window, some were refused or unanswered,
// and none was answered.
func (k *known) failing(key model.EndpointKey) bool {
	o, _ := k.Signals.Outcomes(key)
	return o.Answered == 0 && o.Refused+o.Unanswered > 0
}

// countsOutcomes reports whether outcomes of connections are known.
func (k *known) countsOutcomes(now time.Time) bool {
	if k.Signals == nil {
		return false
	}
	_, window := k.Signals.OutcomesWindow(now)
	return window > 0
}
