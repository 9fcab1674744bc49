package maglev

import "github.com/sluice-proxy/sluice/sdk"

// settings are the settings of a policy, in JSON.
type settings struct {
	MaxTotal int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.Int("maxTotal", &s.MaxTotal, 1, 1000)
}

func defaults() settings { return settings{MaxTotal: 100} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	p.settings = s
	return nil
}
