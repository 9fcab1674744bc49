package utilization

import (
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/plugins/internal/loads"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// settings are the settings of a policy, in JSON.
type settings struct {
	loads.Settings
	From         string
	ErrorPercent int64
	HoldSeconds  int64
}

func (s *settings) fields(f *sdk.Fields) {
	f.String("from", &s.From)
	f.Int("errorPercent", &s.ErrorPercent, 0, 1000)
	weights.Seconds(f, "hold", &s.HoldSeconds, 0, 3600)
	s.Fields(f)
}

func defaults() settings {
	return settings{Settings: loads.Defaults(), ErrorPercent: 100, HoldSeconds: 10}
}

// Configure reads and checks settings.
func (p *plugin) Configure(text []byte) error {
	s := defaults()
	if err := sdk.ParseSettings(text, s.fields); err != nil {
		return err
	}
	if name, ok := strings.CutPrefix(s.From, abi.KeyLoad); s.From != "" && (!ok || !abi.IsLoadName(name)) {
		return errors.New("from: " + strconv.Quote(s.From) + " is not load:FIELD, for example " + sdk.Load("cpu_utilization") + " or " + sdk.Load("utilization/NAME"))
	}
	if err := s.Check(); err != nil {
		return err
	}
	p.settings = s
	return nil
}
