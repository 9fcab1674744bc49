package subset

import "github.com/sluice-proxy/sluice/sdk"

// settings are the settings of a policy, in JSON.
type settings struct {
	Endpoints int64 `json:"endpoints" range:"1,1000"`
}

func defaults() settings { return settings{Endpoints: 20} }

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	p.settings = s
	return nil
}
