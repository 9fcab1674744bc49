package outlier

import (
	"cmp"
	"fmt"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	WindowSeconds       int64 `json:"windowSeconds"`
	FailedPercent       int64 `json:"failedPercent"`
	MinAttempts         int64 `json:"minAttempts"`
	ConsecutiveReadings int64 `json:"consecutiveReadings"`
	NodeEndpoints       int64 `json:"nodeEndpoints"`
	BaseEjectionSeconds int64 `json:"baseEjectionSeconds"`
	MaxEjectionSeconds  int64 `json:"maxEjectionSeconds"`
	JitterPercent       int64 `json:"jitterPercent"`
	MaxEjectionPercent  int64 `json:"maxEjectionPercent"`
	PanicPercent        int64 `json:"panicPercent"`
	ReturnPercent       int64 `json:"returnPercent"`
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
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if err := cmp.Or(
		weights.InRange("windowSeconds", s.WindowSeconds, 2, 60),
		weights.InRange("failedPercent", s.FailedPercent, 1, 100),
		weights.InRange("minAttempts", s.MinAttempts, 1, 10_000),
		weights.InRange("consecutiveReadings", s.ConsecutiveReadings, 0, 100),
		weights.InRange("nodeEndpoints", s.NodeEndpoints, 0, 100),
		weights.InRange("baseEjectionSeconds", s.BaseEjectionSeconds, 1, 3600),
		weights.InRange("maxEjectionSeconds", s.MaxEjectionSeconds, 1, 3600),
		weights.InRange("jitterPercent", s.JitterPercent, 0, 100),
		weights.InRange("maxEjectionPercent", s.MaxEjectionPercent, 1, 100),
		weights.InRange("panicPercent", s.PanicPercent, 1, 100),
		weights.InRange("returnPercent", s.ReturnPercent, 1, 100),
	); err != nil {
		return err
	}
	if s.NodeEndpoints == 1 {
		return fmt.Errorf("nodeEndpoints: 1 is neither 0, for never, nor 2 to 100")
	}
	if s.MaxEjectionSeconds < s.BaseEjectionSeconds {
		return fmt.Errorf("maxEjectionSeconds: %d is less than baseEjectionSeconds, %d", s.MaxEjectionSeconds, s.BaseEjectionSeconds)
	}
	p.settings = s
	return nil
}

// maxTimes returns the number of ejections with which their time reaches its maximum.
func (s *settings) maxTimes() int64 {
	return min(maxTimes, (s.MaxEjectionSeconds+s.BaseEjectionSeconds-1)/s.BaseEjectionSeconds)
}

// ejection returns the time of an ejection in seconds: as in Envoy, the base time for each time the endpoint has been ejected, up to
// the maximum, and a part of that by the hash of endpoint and node, so that nodes do not return to an endpoint at the same time.
func (s *settings) ejection(times int64, hash uint32) int64 {
	t := min(s.BaseEjectionSeconds*times, s.MaxEjectionSeconds)
	return t + int64(uint64(hash)*uint64(t*s.JitterPercent/100+1)>>32)
}
