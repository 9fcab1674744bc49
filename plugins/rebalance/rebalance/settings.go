package rebalance

import (
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
	if err := weights.CheckRanges(
		weights.Range{Field: "percentPerMinute", Value: s.PercentPerMinute, Least: 1, Top: 100},
		weights.Range{Field: "durationSeconds", Value: s.DurationSeconds, Least: 60, Top: 86_400},
		weights.Range{Field: "delaySeconds", Value: s.DelaySeconds, Least: 0, Top: 3600},
		weights.Range{Field: "jitterSeconds", Value: s.JitterSeconds, Least: 0, Top: 3600},
		weights.Range{Field: "tolerancePercent", Value: s.TolerancePercent, Least: 1, Top: 90},
		weights.Range{Field: "minConnections", Value: s.MinConnections, Least: 1, Top: 1_000_000},
	); err != nil {
		return err
	}
	p.settings = s
	return nil
}
