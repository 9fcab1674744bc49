package agent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
)

const noServers = "healthzBindAddress: ''\nmetricsBindAddress: ''\n"

func TestRunLeavesNothingBehind(t *testing.T) {
	squatter, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	plugin := filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")
	for _, c := range []struct {
		name, config string
		socket       string
		until        string // the log line at which it is stopped; "": it returns an error
		err          string // its error
	}{
		{"stopped when in sync", noServers, "sock", "synced all services", ""},
		{"stopped while it starts", noServers, "sock", "sluice started", ""},
		{"stopped when plugins are loaded", noServers + "plugins: [{name: p, file: " + plugin + "}]\npolicies: [{name: p, plugins: [{name: p}]}]\n", "sock", "loaded plugin", ""},
		{"without a state socket", noServers, "sluice.yaml/sock", "", "state socket: mkdir"},
		{"without an address that it must have", "healthzBindAddress: ''\nbindAddressHardFail: true\nmetricsBindAddress: " + squatter.Addr().String() + "\n", "sock", "", "metrics (metricsBindAddress): listen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			leaks := goleak.IgnoreCurrent()
			r := newRig(t, c.config)
			r.opts.Socket = r.path(c.socket)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ended := r.start(ctx)
			if c.until != "" {
				testenv.Eventually(t, "logs "+c.until, func() bool { return strings.Contains(r.log.String(), c.until) }, r.log.String)
				cancel()
			}
			err := r.wait(ended)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("it ends with %v, want %q\n%s", err, c.err, r.log)
			}
			if c.until == "" && ctx.Err() != nil {
				t.Errorf("it does not return:\n%s", r.log)
			}
			if _, err := os.Lstat(r.opts.Socket); err == nil {
				t.Error("the state socket still exists")
			}
			testenv.VerifyNoLeaks(t, leaks)
		})
	}
}

func TestOnceProgramsThePlanAndReturns(t *testing.T) {
	r := newRig(t, noServers)
	r.opts.Once = true
	r.write("manifests/a.yaml", manifests)
	if err := r.wait(r.start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if p, _ := r.kernel.Table(fake.Name); len(p.Frontends) == 0 {
		t.Errorf("nothing is programmed:\n%s", r.log)
	}
}

// TestRunDoesNotWaitForBackgroundTasks: one that reads the configuration, say, from a file system that does not answer.
func TestRunDoesNotWaitForBackgroundTasks(t *testing.T) {
	r := newRig(t, noServers)
	begun, answers := make(chan struct{}), make(chan struct{})
	r.opts.Reload = func() (*config.Config, error) {
		close(begun)
		<-answers
		return r.load()
	}
	stop := r.run()
	<-begun
	if err := stop(); err != nil || !strings.Contains(r.log.String(), "a task in the background did not end") {
		t.Errorf("it ends with %v\n%s", err, r.log)
	}
	close(answers)
}

// slowBackend closes no socket before the end of the test: on a busy node, the kernel takes seconds for one of nf_tables.
type slowBackend struct {
	backend.Backend
	ended <-chan struct{}
}

func (b slowBackend) Close() error {
	<-b.ended
	return b.Backend.Close()
}

// TestStopDoesNotWaitForTheKernelToCloseSockets: it does so at the end of the process.
func TestStopDoesNotWaitForTheKernelToCloseSockets(t *testing.T) {
	r := newRig(t, noServers)
	r.write("manifests/a.yaml", tenantManifests("shop", 0, 1, func(int) string { return "" }))
	r.opts.Checkpoint = r.path("checkpoint")
	open := r.opts.Modes[0].Open
	r.opts.Modes[0].Open = func(cfg *config.Config, log *slog.Logger) (backend.Backend, error) {
		b, err := open(cfg, log)
		return slowBackend{b, t.Context().Done()}, err
	}
	stop := r.run()
	testenv.Eventually(t, "the Service is programmed", func() bool { p, _ := r.kernel.Table(fake.Name); return len(p.Frontends) == 1 })
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	t.Log(time.Since(begin))
	if _, err := os.Stat(r.opts.Checkpoint); err != nil {
		t.Errorf("what must be written before: %v", err)
	}
}
