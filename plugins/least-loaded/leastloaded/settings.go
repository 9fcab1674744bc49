package leastloaded

import (
	"cmp"
	"fmt"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	IntervalSeconds  int64 `json:"intervalSeconds"`
	SmoothingPercent int64 `json:"smoothingPercent"`
	MaxChangePercent int64 `json:"maxChangePercent"`
	TolerancePercent int64 `json:"tolerancePercent"`
	MinPercent       int64 `json:"minPercent"`
	MaxPercent       int64 `json:"maxPercent"`
	MaxAgeSeconds    int64 `json:"maxAgeSeconds"`
	MaxTotal         int64 `json:"maxTotal"`
}

func defaults() settings {
	return settings{
		IntervalSeconds: 10, SmoothingPercent: 30, MaxChangePercent: 20, TolerancePercent: 5, MinPercent: 25, MaxPercent: 200, MaxAgeSeconds: 60,
		MaxTotal: 1000,
	}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if err := cmp.Or(
		weights.InRange("intervalSeconds", s.IntervalSeconds, 2, 300),
		// The weight is the inverse of the average: up to 50 %, a step is at most half of what would make the loop oscillate.
		weights.InRange("smoothingPercent", s.SmoothingPercent, 1, 50),
		weights.InRange("maxChangePercent", s.MaxChangePercent, 1, 100),
		weights.InRange("tolerancePercent", s.TolerancePercent, 0, 50),
		weights.InRange("minPercent", s.MinPercent, 10, 100),
		weights.InRange("maxPercent", s.MaxPercent, 100, 400),
		weights.InRange("maxAgeSeconds", s.MaxAgeSeconds, 1, 3600),
		weights.InRange("maxTotal", s.MaxTotal, 1, 65535),
	); err != nil {
		return err
	}
	if s.MinPercent == 100 && s.MaxPercent == 100 {
		return fmt.Errorf("minPercent, maxPercent: both are 100, so no weight could change")
	}
	p.settings = s
	return nil
}
