package leastloaded

import (
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
	if err := weights.CheckRanges(
		weights.Range{Field: "intervalSeconds", Value: s.IntervalSeconds, Least: 2, Top: 300},
		// The weight is the inverse of the average: up to 50 %, a step is at most half of what would make the loop oscillate.
		weights.Range{Field: "smoothingPercent", Value: s.SmoothingPercent, Least: 1, Top: 50},
		weights.Range{Field: "maxChangePercent", Value: s.MaxChangePercent, Least: 1, Top: 100},
		weights.Range{Field: "tolerancePercent", Value: s.TolerancePercent, Least: 0, Top: 50},
		weights.Range{Field: "minPercent", Value: s.MinPercent, Least: 10, Top: 100},
		weights.Range{Field: "maxPercent", Value: s.MaxPercent, Least: 100, Top: 400},
		weights.Range{Field: "maxAgeSeconds", Value: s.MaxAgeSeconds, Least: 1, Top: 3600},
		weights.Range{Field: "maxTotal", Value: s.MaxTotal, Least: 1, Top: 65535},
	); err != nil {
		return err
	}
	if s.MinPercent == 100 && s.MaxPercent == 100 {
		return fmt.Errorf("minPercent, maxPercent: both are 100, so no weight could change")
	}
	p.settings = s
	return nil
}
