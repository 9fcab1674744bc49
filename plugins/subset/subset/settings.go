package subset

import "github.com/sluice-proxy/sluice/sdk"

// settings are the settings of a policy, in JSON.
type settings struct {
	Endpoints int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.Int("endpoints", &s.Endpoints, 1, 1000)
}

func defaults() settings { return settings{Endpoints: 20} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	p.settings = s
	return nil
}
