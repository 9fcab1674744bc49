package config

import (
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// Default and bounds of policies[].panic.hold, and of policies[].maxShedPercentPerSecond.
const (
	defaultPanicHold = 5 * time.Minute
	maxPanicHold     = time.Hour
	defaultMaxShed   = 1
)

type panicEntry struct {
	Below *int32 `json:"below"`
	Hold  string `json:"hold"`
}

// panicHold parses the panic hold of a policy; nil is none.
func (p *parser) panicHold(path string, e *panicEntry) (out policy.Panic) {
	if e == nil {
		return out
	}
	switch {
	case e.Below == nil:
		p.errorf(path+".below", "required: a percentage of the endpoints")
	case *e.Below < 1 || *e.Below > 100:
		p.errorf(path+".below", "%d is not between 1 and 100", *e.Below)
	default:
		out.Below = int(*e.Below)
	}
	out.Hold = defaultPanicHold
	p.duration(path+".hold", e.Hold, time.Second, &out.Hold)
	switch {
	case out.Hold > maxPanicHold:
		p.errorf(path+".hold", "%s is more than %s", out.Hold, maxPanicHold)
	case out.Hold%time.Second != 0:
		p.errorf(path+".hold", "%s is not a whole number of seconds", out.Hold)
	}
	return out
}

// maxShed parses policies[].maxShedPercentPerSecond.
func (p *parser) maxShed(path string, n *int32) int {
	switch {
	case n == nil:
		return defaultMaxShed
	case *n < 1 || *n > 100:
		p.errorf(path, "%d is not between 1 and 100", *n)
	}
	return int(*n)
}
