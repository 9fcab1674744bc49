package outlier

import (
	"errors"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Numbers of the counters in plugin.json.
const (
	countEjections = iota
	countNodeEjections
	countPanics
)

// settings are the settings of a policy, in JSON.
type settings struct {
	WindowSeconds       int64
	FailedPercent       int64
	MinAttempts         int64
	ConsecutiveReadings int64
	NodeEndpoints       int64
	BaseEjectionSeconds int64
	MaxEjectionSeconds  int64
	JitterPercent       int64
	MaxEjectionPercent  int64
	PanicPercent        int64
	ReturnPercent       int64
}

func (s *settings) fields(f *sdk.Fields) {
	weights.Seconds(f, "window", &s.WindowSeconds, 2, 60)
	f.Int("failedPercent", &s.FailedPercent, 1, 100)
	f.Int("minAttempts", &s.MinAttempts, 1, 10000)
	f.Int("consecutiveReadings", &s.ConsecutiveReadings, 0, 100)
	f.Int("nodeEndpoints", &s.NodeEndpoints, 0, 100)
	weights.Seconds(f, "baseEjectionTime", &s.BaseEjectionSeconds, 1, 3600)
	weights.Seconds(f, "maxEjectionTime", &s.MaxEjectionSeconds, 1, 3600)
	f.Int("jitterPercent", &s.JitterPercent, 0, 100)
	f.Int("maxEjectionPercent", &s.MaxEjectionPercent, 1, 100)
	f.Int("panicPercent", &s.PanicPercent, 1, 100)
	f.Int("returnPercent", &s.ReturnPercent, 1, 100)
}

// defaults are those of Envoy where it has the same setting: interval, consecutive_5xx (minAttempts), base_ejection_time,
// max_ejection_time, max_ejection_percent, healthy_panic_threshold.
func defaults() settings {
	return settings{
		WindowSeconds: 10, FailedPercent: 50, MinAttempts: 5, ConsecutiveReadings: 2, NodeEndpoints: 2, BaseEjectionSeconds: 30,
		MaxEjectionSeconds: 300, JitterPercent: 20, MaxEjectionPercent: 10, PanicPercent: 50, ReturnPercent: 10,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if s.NodeEndpoints == 1 {
		return errors.New("nodeEndpoints: 1 is neither 0, for never, nor 2 to 100")
	}
	if s.MaxEjectionSeconds < s.BaseEjectionSeconds {
		return errors.New("maxEjectionTime: " + seconds(s.MaxEjectionSeconds) + " is less than baseEjectionTime, " + seconds(s.BaseEjectionSeconds))
	}
	p.settings = s
	return nil
}

func seconds(n int64) string { return (sdk.Duration(n) * sdk.Second).String() }

// maxTimes returns the number of ejections with which their time reaches its maximum.
func (s *settings) maxTimes() int64 {
	return min(maxTimes, (s.MaxEjectionSeconds+s.BaseEjectionSeconds-1)/s.BaseEjectionSeconds)
}

// ejection returns the time of an ejection in seconds: as in Envoy, the base time for each time the endpoint has been ejected, up
// to the maximum, and a part of that by the hash of endpoint and node, so that nodes do not return to an endpoint at the same
// time.
func (s *settings) ejection(times int64, hash uint32) int64 {
	t := min(s.BaseEjectionSeconds*times, s.MaxEjectionSeconds)
	return t + int64(uint64(hash)*uint64(t*s.JitterPercent/100+1)>>32)
}
