package stageddrain

import (
	"fmt"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

const maxStages = 16

// settings are the settings of a policy, in JSON.
type settings struct {
	Stages            []stageSettings `json:"stages"`
	ResetAfterSeconds *int64          `json:"resetAfterSeconds" range:"0,86400"`
}

// stageSettings is one stage of a drain.
type stageSettings struct {
	Weight  *int   `json:"weight" range:"0,100"`   // percent
	Seconds *int64 `json:"seconds" range:"1,3600"` // duration
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
		case *s.Weight > before:
			return nil, fmt.Errorf("%s.weight: %d is more than %d of the previous stage", at, *s.Weight, before)
		case s.Seconds == nil:
			return nil, fmt.Errorf("%s.seconds: missing", at)
		}
		end, before = end+*s.Seconds*1000, *s.Weight
		steps = append(steps, stage{
			percent: *s.Weight, end: end,
			reason: fmt.Sprintf("draining: stage %d of %d, %d %%", i+1, len(stages), *s.Weight),
		})
	}
	return steps, nil
}
