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
	s := defaults()
	if err := sdk.UnmarshalSettings(text, &s); err != nil {
		return err
	}
	if err := weights.CheckRanges(weights.Range{Field: "maxTotal", Value: s.MaxTotal, Least: 1, Top: 1000}); err != nil {
		return err
	}
	p.settings = s
	return nil
}
