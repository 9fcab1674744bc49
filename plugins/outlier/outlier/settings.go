package outlier

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	WindowSeconds       int64 `json:"windowSeconds" range:"2,60"`
	FailedPercent       int64 `json:"failedPercent" range:"1,100"`
	MinAttempts         int64 `json:"minAttempts" range:"1,10000"`
	ConsecutiveReadings int64 `json:"consecutiveReadings" range:"0,100"`
	NodeEndpoints       int64 `json:"nodeEndpoints" range:"0,100"`
	BaseEjectionSeconds int64 `json:"baseEjectionSeconds" range:"1,3600"`
	MaxEjectionSeconds  int64 `json:"maxEjectionSeconds" range:"1,3600"`
	JitterPercent       int64 `json:"jitterPercent" range:"0,100"`
	MaxEjectionPercent  int64 `json:"maxEjectionPercent" range:"1,100"`
	PanicPercent        int64 `json:"panicPercent" range:"1,100"`
	ReturnPercent       int64 `json:"returnPercent" range:"1,100"`
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
