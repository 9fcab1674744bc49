package planner

import (
	"errors"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// serviceState is the state of a planned Service.
type serviceState struct {
	decisions *decisionCache // the last decisions; nil without a policy
	policy    *policyState   // nil: none of its rounds was governed; most Services of a cluster have none
	enforced  chainWait
	shadow    chainWait
	resetDone map[resetKey]int64 // deadlines that a Result has reported in Resets
	udp       map[udpPort]udpEndpoints
	ports     []model.PortName
	summary   tally.Summary
	draining  map[netip.AddrPort]int64 // since when endpoints drain, Unix milliseconds; nil: none does
	omitted   []plan.Degradation       // what the limits left out
	round     *round                   // nil: none has begun
	record    *Record                  // nil: it is no backend of a route
	place     queue.Place
	planned   bool // it is in Planner.services
}

// policyState is the part of the state of a Service that policies, and counting its connections, need.
type policyState struct {
	err          error               // of the policy's chain
	failed       []PolicyError       // of each policy whose chain fails
	reported     bool                // a Result has reported the error
	shadowFailed bool                // a Result has reported the error of the shadow
	choiceErr    *policy.ChoiceError // of the annotation, that a Result has reported; nil: none
	settings     policy.ServiceSettings
	settingsErr  string // that a Result has reported; "" for none
	counted      tally.Counted
	guards       []*guard     // that concern it
	shift        policy.Shift // of the guarded policy that decides
	values       indexedValues
}

// reportOnce returns whether the error of a chain is to be reported, and remembers it in reported: once while it lasts. Its text
// is not compared: it changes with, for instance, the time for which a plugin stays suspended.
func reportOnce(err error, reported *bool) bool {
	if err != nil && (*reported || errors.Is(err, policy.ErrPending)) {
		return false
	}
	*reported = err != nil
	return *reported
}

// reportChoice adds an error of the annotation that names the policy to the result, once while it lasts.
func (s *policyState) reportChoice(err *policy.ChoiceError, result *Result) {
	if err != nil && !err.Equal(s.choiceErr) {
		result.ChoiceErrors = append(result.ChoiceErrors, err)
	}
	s.choiceErr = err
}

// reportSettings adds an error of the Service's own settings to the result, once while it lasts.
func (s *policyState) reportSettings(name model.Name, result *Result) {
	text := ""
	if err := s.settings.Err; err != nil {
		if text = err.Error(); text != s.settingsErr {
			result.SettingsErrors = append(result.SettingsErrors, &ServiceError{name, err})
		}
	}
	s.settingsErr = text
}

// resetKey identifies a deadline: the pools of a frontend have decisions of their own.
type resetKey struct {
	plan.Reset
	outside bool
}

// dueResets adds the endpoints whose deadline has passed to the result, each once, and returns the next deadline.
func (s *serviceState) dueResets(frontends []*plan.Frontend, nowMS int64, result *Result) (next int64) {
	var done map[resetKey]int64
	for _, f := range frontends {
		pools := []*plan.Pool{&f.Pool}
		if f.Outside != nil {
			pools = append(pools, f.Outside)
		}
		for i, pool := range pools {
			for _, m := range pool.Endpoints {
				switch {
				case m.Deadline == 0:
				case m.Deadline > nowMS:
					next = earlier(next, m.Deadline)
				default:
					key := resetKey{plan.Reset{Frontend: f.Key, Endpoint: m.Addr}, i > 0}
					if s.resetDone[key] != m.Deadline {
						result.Resets = append(result.Resets, key.Reset)
					}
					if done == nil {
						done = map[resetKey]int64{}
					}
					done[key] = m.Deadline
				}
			}
		}
	}
	s.resetDone = done
	return next
}

// earlier returns the earlier of two times, where 0 means none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (s *serviceState) wait(shadow bool) *chainWait {
	if shadow {
		return &s.shadow
	}
	return &s.enforced
}
