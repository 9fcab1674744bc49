package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

func TestAFailureToSetTheOOMScoreIsAWarningOnlyIfSomebodyHasSetIt(t *testing.T) {
	const head = "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\n"
	for text, want := range map[string]string{"": "level=DEBUG", "oomScoreAdj: null\n": "level=DEBUG", "oomScoreAdj: -999\n": "level=WARN", "oomScoreAdj: 0\n": "level=WARN"} {
		cfg, err := config.Parse([]byte(head+text), "")
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		setOOMScoreAdj(probe.Host{Root: t.TempDir()}, cfg, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		if !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "setting oomScoreAdj failed") {
			t.Errorf("%q: logged %q, want %s", text, log.String(), want)
		}
	}
}
