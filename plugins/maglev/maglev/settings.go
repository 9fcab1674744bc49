package maglev

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	MaxTotal int64 `json:"maxTotal"`
}

func defaults() settings { return settings{MaxTotal: 100} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	if err := weights.InRange("maxTotal", s.MaxTotal, 1, 1000); err != nil {
		return err
	}
	p.settings = s
	return nil
}
