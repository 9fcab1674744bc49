package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/config"
)

func TestDurationsAreSecondsInJSONLogs(t *testing.T) {
	cfg := config.Default()
	cfg.Logging.Format = config.LogJSON
	var out strings.Builder
	logs := &agent.Logs{}
	log := newLogger(&out, cfg, logs)
	log.Info("synced", "duration", 1500*time.Microsecond)
	log.Debug("not at this level")
	if !strings.Contains(out.String(), `"duration":0.0015}`) || string(logs.Tail()) != out.String() || strings.Contains(out.String(), "not at") {
		t.Error(out.String())
	}
	logs.SetLevel(slog.LevelDebug)
	log.Debug("at this level")
	if !strings.Contains(out.String(), "at this level") {
		t.Error(out.String())
	}
}
