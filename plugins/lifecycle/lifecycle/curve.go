package lifecycle

import (
	"math"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// warmSettings are the section warm of the settings.
type warmSettings struct {
	DurationSeconds int64
	// In this range, no step of a second or more is lost to rounding at the top of the curve.
	Aggression float64
	MinPercent int64
	Steps      int64
}

func (s *warmSettings) fields(f *sdk.Fields) {
	weights.Seconds(f, "duration", &s.DurationSeconds, 1, 3600)
	f.Float("aggression", &s.Aggression, 0.1, 10)
	f.Int("minPercent", &s.MinPercent, 1, 100)
	f.Int("steps", &s.Steps, 2, 20)
}

func warmDefaults() warmSettings {
	return warmSettings{DurationSeconds: 60, Aggression: 1, MinPercent: 10, Steps: 10}
}

// step is a stretch of time in which the capacity of an endpoint does not change.
type step struct {
	start  int64 // milliseconds since the endpoint became ready
	parts  int   // of a full capacity, which has as many as there are steps
	reason string

	id    sdk.ReasonID // of the reason in the response
	added bool
}

func (s *warmSettings) warm() *warm {
	return &warm{full: int(s.Steps), duration: s.DurationSeconds * 1000, steps: s.curve()}
}

// curve returns the steps below the full capacity. A step starts when the curve of Envoy, (t ÷ duration)^(1 ÷ aggression),
// reaches it.
func (s *warmSettings) curve() (steps []step) {
	duration := float64(s.DurationSeconds * 1000)
	for parts := (s.MinPercent*s.Steps + 99) / 100; parts < s.Steps; parts++ {
		start := int64(0)
		if len(steps) > 0 {
			start = int64(math.Ceil(duration * math.Pow(float64(parts)/float64(s.Steps), s.Aggression)))
		}
		percent := strconv.FormatInt((parts*200+s.Steps)/(2*s.Steps), 10)
		steps = append(steps, step{start: start, parts: int(parts), reason: "new: " + percent + " %"})
	}
	return steps
}
