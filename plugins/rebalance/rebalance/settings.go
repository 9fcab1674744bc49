package rebalance

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	MaxShedPercentPerMinute int64
	DurationSeconds         int64
	DelaySeconds            int64
	JitterSeconds           int64
	TolerancePercent        int64
	MinConnections          int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.Int("maxShedPercentPerMinute", &s.MaxShedPercentPerMinute, 1, 100)
	weights.Seconds(f, "duration", &s.DurationSeconds, 60, 86400)
	weights.Seconds(f, "delay", &s.DelaySeconds, 0, 3600)
	weights.Seconds(f, "jitter", &s.JitterSeconds, 0, 3600)
	f.Int("tolerancePercent", &s.TolerancePercent, 1, 90)
	f.Int("minConnections", &s.MinConnections, 1, 1000000)
}

func defaults() settings {
	return settings{MaxShedPercentPerMinute: 10, DurationSeconds: 900, DelaySeconds: 30, JitterSeconds: 60, TolerancePercent: 20, MinConnections: 20}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	p.settings = s
	return nil
}
