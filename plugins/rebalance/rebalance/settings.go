package rebalance

import "github.com/sluice-proxy/sluice/sdk"

// settings are the settings of a policy, in JSON.
type settings struct {
	PercentPerMinute int64 `json:"percentPerMinute" range:"1,100"`
	DurationSeconds  int64 `json:"durationSeconds" range:"60,86400"`
	DelaySeconds     int64 `json:"delaySeconds" range:"0,3600"`
	JitterSeconds    int64 `json:"jitterSeconds" range:"0,3600"`
	TolerancePercent int64 `json:"tolerancePercent" range:"1,90"`
	MinConnections   int64 `json:"minConnections" range:"1,1000000"`
}

func defaults() settings {
	return settings{PercentPerMinute: 10, DurationSeconds: 900, DelaySeconds: 30, JitterSeconds: 60, TolerancePercent: 20, MinConnections: 20}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s, err := sdk.ParseSettings(text, defaults())
	if err != nil {
		return err
	}
	p.settings = s
	return nil
}
