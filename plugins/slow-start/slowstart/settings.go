package slowstart

import (
	"math"
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	WindowSeconds int64
	// In this range, no step of a window of a second or more is lost to rounding at the top of the curve.
	Aggression float64
	MinPercent int64
	Steps      int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.Int("windowSeconds", &s.WindowSeconds, 1, 3600)
	f.Float("aggression", &s.Aggression, 0.1, 10)
	f.Int("minPercent", &s.MinPercent, 1, 100)
	f.Int("steps", &s.Steps, 2, 20)
}

func defaults() settings {
	return settings{WindowSeconds: 60, Aggression: 1, MinPercent: 10, Steps: 10}
}

// step is a stretch of the window in which the capacity of an endpoint does not change.
type step struct {
	start  int64 // milliseconds since the endpoint became ready
	parts  int   // of a full capacity, which has as many as there are steps
	reason string

	id    sdk.ReasonID // of the reason in the response
	added bool
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	p.full, p.window, p.steps = int(s.Steps), s.WindowSeconds*1000, s.curve()
	return nil
}

// curve returns the steps below the full capacity. A step starts when the curve of Envoy, (t ÷ window)^(1 ÷ aggression), reaches it.
func (s settings) curve() (steps []step) {
	window := float64(s.WindowSeconds * 1000)
	for parts := (s.MinPercent*s.Steps + 99) / 100; parts < s.Steps; parts++ {
		start := int64(0)
		if len(steps) > 0 {
			start = int64(math.Ceil(window * math.Pow(float64(parts)/float64(s.Steps), s.Aggression)))
		}
		percent := strconv.FormatInt((parts*200+s.Steps)/(2*s.Steps), 10)
		steps = append(steps, step{start: start, parts: int(parts), reason: "new: " + percent + " %"})
	}
	return steps
}
