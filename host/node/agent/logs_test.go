package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

func TestLogTailIsBoundedAndHasTheLastLines(t *testing.T) {
	var l Logs
	for i := range 20_000 {
		fmt.Fprintf(&l, "line %d %s\n", i, strings.Repeat("x", i%100))
	}
	fmt.Fprintf(&l, "long %s\n", strings.Repeat("y", 2*maxTailLine))
	tail := string(l.Tail())
	if len(tail) > maxTail || len(tail) < maxTail/3 || !strings.HasPrefix(tail, "line ") || !strings.Contains(tail, "\nline 19999 ") || !strings.HasSuffix(tail, "y…\n") {
		t.Errorf("%d bytes, %.20q to %.20q", len(tail), tail, tail[len(tail)-20:])
	}
}

// TestMixedReloadAppliesTheLiveFields: those that need a restart are named. The level of the log is live.
func TestMixedReloadAppliesTheLiveFields(t *testing.T) {
	r := newRig(t, noServers)
	r.opts.Logs = &Logs{}
	r.opts.Logs.Configure(r.opts.Config)
	r.write("manifests/a.yaml", manifests)
	stop := r.run()
	var s *api.Status
	status := func(done func() bool) {
		t.Helper()
		testenv.Eventually(t, "the condition", func() bool {
			var err error
			s, err = stateclient.OnSocket(r.opts.Socket).Status(t.Context())
			return err == nil && done()
		})
	}
	status(func() bool { return s.Synced != nil })
	hash := s.Configuration.Hash
	r.configure(noServers + "masqueradeAll: true\nsyncPeriod: 31s\nlogging: {verbosity: 1, format: json}\n")
	status(func() bool { return s.Configuration.NeedsRestart && s.LogLevel == "debug" })
	if s.Configuration.Hash == hash || len(s.Failing) != 1 {
		t.Errorf("%+v", s)
	}
	for _, want := range []string{"configuration in force in part since ", "syncPeriod: change from 30s to 31s requires a restart", "logging.format: change from text to json requires a restart"} {
		if !strings.Contains(s.Failing[0].Text, want) {
			t.Errorf("no %q in %s", want, s.Failing[0].Text)
		}
	}
	if strings.Contains(s.Failing[0].Text, "masqueradeAll") {
		t.Error(s.Failing[0].Text)
	}
	r.configure(noServers + "masqueradeAll: true\nlogging: {verbosity: 0}\n")
	status(func() bool { return s.Configuration.Error == "" && s.LogLevel == "info" })
	if err := stateclient.OnSocket(r.opts.Socket).SetLogLevel(t.Context(), slog.LevelDebug); err != nil {
		t.Error(err)
	}
	status(func() bool { return s.LogLevel == "debug" })
	if err := stop(); err != nil {
		t.Error(err)
	}
}
