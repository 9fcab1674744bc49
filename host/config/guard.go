package config

import (
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// Default and bounds of policies[].guard.window. A shorter one has too few connections, and failures in a longer one last too long.
const (
	defaultGuardWindow = 30 * time.Second
	minGuardWindow     = 5 * time.Second
	maxGuardWindow     = 10 * time.Minute
)

// guardReadings is how many readings of outcomes a window of a guard has at least.
const guardReadings = 2

type guardEntry struct {
	FailedPercent *int32 `json:"failedPercent"`
	Window        string `json:"window"`
}

// guard parses the guard of a policy with so many plugins; nil is none.
func (p *parser) guard(path string, e *guardEntry, plugins int) (out policy.Guard) {
	if e == nil {
		return out
	}
	switch {
	case e.FailedPercent == nil:
		p.errorf(path+".failedPercent", "required: how many more of a hundred connections may fail than without the policy")
	case *e.FailedPercent < 1 || *e.FailedPercent > 100:
		p.errorf(path+".failedPercent", "%d is not between 1 and 100", *e.FailedPercent)
	default:
		out.FailedPercent = int(*e.FailedPercent)
	}
	out.Window = defaultGuardWindow
	p.duration(path+".window", e.Window, minGuardWindow, &out.Window)
	if out.Window > maxGuardWindow {
		p.errorf(path+".window", "%s is more than %s", out.Window, maxGuardWindow)
	}
	if plugins == 0 {
		p.errorf(path, "plugins required: a policy without them has nothing to fall back from")
	}
	return out
}

// guardWindows compares the windows of guards with the time between two readings of outcomes.
func (p *parser) guardWindows(c *Config) {
	for i := range c.Policies {
		if g := &c.Policies[i].Guard; g.FailedPercent != 0 && g.Window < guardReadings*c.Signals.Period {
			p.errorf(fmt.Sprintf("policies[%d].guard.window", i), "%s is less than %d times signals.period, %s", g.Window, guardReadings, c.Signals.Period)
		}
	}
}
