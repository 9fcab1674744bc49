package leastloaded

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	IntervalSeconds int64 `json:"intervalSeconds" range:"2,300"`
	// The weight is the inverse of the average: up to 50 %, a step is at most half of what would make the loop oscillate.
	SmoothingPercent int64 `json:"smoothingPercent" range:"1,50"`
	MaxChangePercent int64 `json:"maxChangePercent" range:"1,100"`
	TolerancePercent int64 `json:"tolerancePercent" range:"0,50"`
	MinPercent       int64 `json:"minPercent" range:"10,100"`
	MaxPercent       int64 `json:"maxPercent" range:"100,400"`
	MaxAgeSeconds    int64 `json:"maxAgeSeconds" range:"1,3600"`
	MaxTotal         int64 `json:"maxTotal" range:"1,65535"`
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
	if s.MinPercent == 100 && s.MaxPercent == 100 {
		return fmt.Errorf("minPercent, maxPercent: both are 100, so no weight could change")
	}
	p.settings = s
	return nil
}
