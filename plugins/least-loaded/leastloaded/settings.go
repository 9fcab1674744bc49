package leastloaded

import (
	"errors"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	IntervalSeconds int64
	// The share is the inverse of the average: up to 50 %, a step is at most half of what would make the loop oscillate.
	SmoothingPercent int64
	MaxChangePercent int64
	TolerancePercent int64
	MinPercent       int64
	MaxPercent       int64
	MaxAgeSeconds    int64
}

func (s *settings) fields(f *sdk.Fields) {
	weights.Seconds(f, "interval", &s.IntervalSeconds, 2, 300)
	f.Int("smoothingPercent", &s.SmoothingPercent, 1, 50)
	f.Int("maxChangePercent", &s.MaxChangePercent, 1, 100)
	f.Int("tolerancePercent", &s.TolerancePercent, 0, 50)
	f.Int("minPercent", &s.MinPercent, 10, 100)
	f.Int("maxPercent", &s.MaxPercent, 100, 400)
	weights.Seconds(f, "maxAge", &s.MaxAgeSeconds, 1, 3600)
}

func defaults() settings {
	return settings{
		IntervalSeconds: 10, SmoothingPercent: 30, MaxChangePercent: 20, TolerancePercent: 5, MinPercent: 25, MaxPercent: 200, MaxAgeSeconds: 60,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if s.MinPercent == 100 && s.MaxPercent == 100 {
		return errors.New("minPercent, maxPercent: both are 100, so no share could change")
	}
	p.settings = s
	return nil
}
