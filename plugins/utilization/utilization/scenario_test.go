package utilization

import (
	"testing"

	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func TestScenarios(t *testing.T) { sdktest.RunScenario(t, New, "../testdata/*.scenario") }
