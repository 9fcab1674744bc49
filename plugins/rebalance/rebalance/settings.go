package rebalance

import (
	"cmp"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	PercentPerMinute int64 `json:"percentPerMinute"`
	DurationSeconds  int64 `json:"durationSeconds"`
	DelaySeconds     int64 `json:"delaySeconds"`
	JitterSeconds    int64 `json:"jitterSeconds"`
	TolerancePercent int64 `json:"tolerancePercent"`
	MinConnections   int64 `json:"minConnections"`
}

func defaults() settings {
	return settings{PercentPerMinute: 10, DurationSeconds: 900, DelaySeconds: 30, JitterSeconds: 60, TolerancePercent: 20, MinConnections: 20}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if err := cmp.Or(
		weights.InRange("percentPerMinute", s.PercentPerMinute, 1, 100),
		weights.InRange("durationSeconds", s.DurationSeconds, 60, 86_400),
		weights.InRange("delaySeconds", s.DelaySeconds, 0, 3600),
		weights.InRange("jitterSeconds", s.JitterSeconds, 0, 3600),
		weights.InRange("tolerancePercent", s.TolerancePercent, 1, 90),
		weights.InRange("minConnections", s.MinConnections, 1, 1_000_000),
	); err != nil {
		return err
	}
	p.settings = s
	return nil
}
