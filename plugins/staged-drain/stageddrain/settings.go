package stageddrain

import (
	"errors"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

const maxStages = 16

// settings are the settings of a policy, in JSON.
type settings struct {
	Stages            []stageSettings
	ResetAfterSeconds int64 // -1: never
}

func (s *settings) fields(f *sdk.Fields) {
	sdk.List(f, "stages", &s.Stages, (*stageSettings).fields)
	f.Int("resetAfterSeconds", &s.ResetAfterSeconds, 0, 86400)
}

// stageSettings is one stage of a drain.
type stageSettings struct {
	Weight  int64 // percent
	Seconds int64 // duration
}

func (s *stageSettings) fields(f *sdk.Fields) {
	f.Require("weight")
	f.Int("weight", &s.Weight, 0, 100)
	f.Require("seconds")
	f.Int("seconds", &s.Seconds, 1, 3600)
}

// stage is a validated stage.
type stage struct {
	percent int
	end     int64 // milliseconds since the start of the drain
	reason  string
}

// defaults are 100 → 50 → 10 → 0 percent over 30 s.
func defaults() []stageSettings { return []stageSettings{{100, 10}, {50, 10}, {10, 10}} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := settings{ResetAfterSeconds: -1}
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if s.Stages == nil {
		s.Stages = defaults()
	}
	steps, err := checkStages(s.Stages)
	if err != nil {
		return err
	}
	p.stages, p.reset = steps, s.ResetAfterSeconds*1000
	return nil
}

func checkStages(stages []stageSettings) ([]stage, error) {
	if err := weights.CheckLen("stages", len(stages), maxStages); err != nil {
		return nil, err
	}
	var steps []stage
	end, before := int64(0), int64(100)
	for i, s := range stages {
		weight := strconv.FormatInt(s.Weight, 10)
		if s.Weight > before {
			return nil, errors.New("stages[" + strconv.Itoa(i) + "].weight: " + weight + " is more than " + strconv.FormatInt(before, 10) + " of the previous stage")
		}
		end, before = end+s.Seconds*1000, s.Weight
		steps = append(steps, stage{
			percent: int(s.Weight), end: end,
			reason: "draining: stage " + strconv.Itoa(i+1) + " of " + strconv.Itoa(len(stages)) + ", " + weight + " %",
		})
	}
	return steps, nil
}
