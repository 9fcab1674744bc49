package leastloaded

import (
	"github.com/sluice-proxy/sluice/plugins/internal/loads"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	loads.Settings
	MaxAgeSeconds int64
}

func (s *settings) fields(f *sdk.Fields) {
	s.Fields(f)
	weights.Seconds(f, "maxAge", &s.MaxAgeSeconds, 1, 3600)
}

func defaults() settings { return settings{Settings: loads.Defaults(), MaxAgeSeconds: 60} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if err := s.Check(); err != nil {
		return err
	}
	p.settings = s
	return nil
}
