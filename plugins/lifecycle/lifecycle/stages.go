package lifecycle

import (
	"errors"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

const maxStages = 16

// drainSettings are the section drain of the settings.
type drainSettings struct {
	Stages            []stageSettings
	ResetAfterSeconds int64 // -1: never
}

func (s *drainSettings) fields(f *sdk.Fields) {
	sdk.List(f, "stages", &s.Stages, (*stageSettings).fields)
	weights.Seconds(f, "resetAfter", &s.ResetAfterSeconds, 0, 86400)
}

// stageSettings is one stage of a drain.
type stageSettings struct {
	Percent         int64
	DurationSeconds int64
}

func (s *stageSettings) fields(f *sdk.Fields) {
	f.Require("percent")
	f.Int("percent", &s.Percent, 0, 100)
	f.Require("duration")
	weights.Seconds(f, "duration", &s.DurationSeconds, 1, 3600)
}

// stage is a validated stage.
type stage struct {
	percent int
	end     int64 // milliseconds since the start of the drain
	reason  string
}

func drainDefaults() drainSettings { return drainSettings{ResetAfterSeconds: -1} }

func (s *drainSettings) drain() (*drain, error) {
	if s.Stages == nil {
		s.Stages = []stageSettings{{100, 10}, {50, 10}, {10, 10}}
	}
	stages, err := checkStages(s.Stages)
	return &drain{stages, s.ResetAfterSeconds * 1000}, err
}

func checkStages(stages []stageSettings) ([]stage, error) {
	if err := weights.CheckLen("drain.stages", len(stages), maxStages); err != nil {
		return nil, err
	}
	var steps []stage
	end, before := int64(0), int64(100)
	for i, s := range stages {
		percent := strconv.FormatInt(s.Percent, 10)
		if s.Percent > before {
			return nil, errors.New("drain.stages[" + strconv.Itoa(i) + "].percent: " + percent + " is more than " + strconv.FormatInt(before, 10) + " of the previous stage")
		}
		end, before = end+s.DurationSeconds*1000, s.Percent
		steps = append(steps, stage{
			percent: int(s.Percent), end: end,
			reason: "draining: stage " + strconv.Itoa(i+1) + " of " + strconv.Itoa(len(stages)) + ", " + percent + " %",
		})
	}
	return steps, nil
}
