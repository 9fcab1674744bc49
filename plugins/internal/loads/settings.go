package loads

import (
	"errors"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Settings are how averages follow readings, and how far shares follow averages.
type Settings struct {
	IntervalSeconds int64
	// The share is the inverse of the average: up to 50 %, a step is at most half of what would make the loop oscillate.
	SmoothingPercent int64
	MaxChangePercent int64
	TolerancePercent int64
	MinPercent       int64
	MaxPercent       int64
}

// Defaults are the settings without any.
func Defaults() Settings {
	return Settings{IntervalSeconds: 10, SmoothingPercent: 30, MaxChangePercent: 20, TolerancePercent: 5, MinPercent: 25, MaxPercent: 200}
}

// Fields declares the settings.
func (s *Settings) Fields(f *sdk.Fields) {
	weights.Seconds(f, "interval", &s.IntervalSeconds, 2, 300)
	f.Int("smoothingPercent", &s.SmoothingPercent, 1, 50)
	f.Int("maxChangePercent", &s.MaxChangePercent, 1, 100)
	f.Int("tolerancePercent", &s.TolerancePercent, 0, 50)
	f.Int("minPercent", &s.MinPercent, 10, 100)
	f.Int("maxPercent", &s.MaxPercent, 100, 400)
}

// Check returns an error if no share could change.
func (s *Settings) Check() error {
	if s.MinPercent == 100 && s.MaxPercent == 100 {
		return errors.New("minPercent, maxPercent: both are 100, so no share could change")
	}
	return nil
}

// follow returns the average after a reading, both in 1/One.
func (s *Settings) follow(average, reading uint64) uint64 {
	bound := uint64(s.MaxChangePercent)
	off := max(average, reading) - min(average, reading)
	if off*100 <= average*uint64(s.TolerancePercent) {
		return average
	}
	change := off * uint64(s.SmoothingPercent) / 100
	if reading > average {
		average += min(change, average*bound/100)
	} else {
		average -= min(change, average*bound/(100+bound))
	}
	return min(max(average, s.least()), s.most())
}

// least and most are the bounds of an average, beyond which the share does not follow.
func (s *Settings) least() uint64 { return One * 100 / uint64(s.MaxPercent) }
func (s *Settings) most() uint64  { return One * 100 / uint64(s.MinPercent) }
