package stageddrain

import (
	"fmt"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// Ranges of the settings.
const (
	maxStages = 16
	maxStage  = 3600  // seconds
	maxReset  = 86400 // seconds
)

// settings are the settings of a policy, in JSON.
type settings struct {
	Stages            []stageSettings `json:"stages"`
	ResetAfterSeconds *int64          `json:"resetAfterSeconds"`
}

// stageSettings is one stage of a drain.
type stageSettings struct {
	Weight  *int   `json:"weight"`  // percent
	Seconds *int64 `json:"seconds"` // duration
}

// stage is a validated stage.
type stage struct {
	percent int
	end     int64 // milliseconds since the start of the drain
	reason  string
}

// defaults are 100 → 50 → 10 → 0 percent over 30 s.
var defaults = [...]struct {
	percent int
	seconds int64
}{{100, 10}, {50, 10}, {10, 10}}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, settings{})
	if err != nil {
		return err
	}
	if s.Stages == nil {
		for _, d := range defaults {
			s.Stages = append(s.Stages, stageSettings{&d.percent, &d.seconds})
		}
	}
	steps, err := checkStages(s.Stages)
	if err != nil {
		return err
	}
	reset := int64(-1)
	if s.ResetAfterSeconds != nil {
		if err := weights.InRange("resetAfterSeconds", *s.ResetAfterSeconds, 0, maxReset); err != nil {
			return err
		}
		reset = *s.ResetAfterSeconds * 1000
	}
	p.stages, p.reset = steps, reset
	return nil
}

func checkStages(stages []stageSettings) ([]stage, error) {
	if err := weights.CheckLen("stages", len(stages), maxStages); err != nil {
		return nil, err
	}
	var steps []stage
	end, before := int64(0), 100
	for i, s := range stages {
		at := "stages[" + strconv.Itoa(i) + "]"
		switch {
		case s.Weight == nil:
			return nil, fmt.Errorf("%s.weight: missing", at)
		case *s.Weight < 0 || *s.Weight > 100:
			return nil, fmt.Errorf("%s.weight: %d is not 0 to 100 percent", at, *s.Weight)
		case *s.Weight > before:
			return nil, fmt.Errorf("%s.weight: %d is more than %d of the previous stage", at, *s.Weight, before)
		case s.Seconds == nil:
			return nil, fmt.Errorf("%s.seconds: missing", at)
		case *s.Seconds < 1 || *s.Seconds > maxStage:
			return nil, fmt.Errorf("%s.seconds: %d is not 1 to %d", at, *s.Seconds, maxStage)
		}
		end, before = end+*s.Seconds*1000, *s.Weight
		steps = append(steps, stage{
			percent: *s.Weight, end: end,
			reason: fmt.Sprintf("draining: stage %d of %d, %d %%", i+1, len(stages), *s.Weight),
		})
	}
	return steps, nil
}
