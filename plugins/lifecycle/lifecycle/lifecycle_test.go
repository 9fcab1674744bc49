package lifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func TestSectionsThatTheSettingsHaveAreOn(t *testing.T) {
	for settings, want := range map[string][]float64{
		"": {1, .1, .5}, "{}": {1, .1, .5}, "null": {1, .1, .5}, `{"warm":null,"drain":null}`: {1, .1, .5}, `{"warm":{},"drain":{}}`: {1, .1, .5},
		`{"warm":{}}`: {1, .1, 0}, `{"warm":{"minPercent":30}}`: {1, .3, 0}, `{"warm":{},"drain":null}`: {1, .1, 0},
		`{"drain":{}}`: {1, 1, .5}, `{"drain":{},"warm":null}`: {1, 1, .5},
	} {
		resp := sdktest.MustRun(t, New(), settings, sdktest.NewRequest("a", nil, sdktest.Ready("a"), since(0), ago("a", 10*time.Second)))
		if got := sdktest.Answers(resp); !slices.Equal(got, want) {
			t.Errorf("%s: capacities %v, want %v", settings, got, want)
		}
	}
}
