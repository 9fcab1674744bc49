package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// fakeModes is a table with one mode, which programs a kernel in memory.
func fakeModes(k *fake.Kernel) dataplane.Modes {
	return dataplane.Modes{{
		Name: config.ModeNFTables, Caps: fake.Everything,
		Open: func(*config.Config, *slog.Logger) (backend.Backend, error) { return fake.Open(k), nil },
	}}
}

// rig is an agent of node n0 on a kernel in memory, with a folder of manifests and a configuration file.
type rig struct {
	testing.TB
	dir    string
	log    *testnet.Log
	kernel *fake.Kernel
	opts   Options
}

// newRig writes the fields of a configuration, and makes options of an agent that has it.
func newRig(t testing.TB, fields string) *rig {
	t.Helper()
	r := &rig{TB: t, dir: t.TempDir(), log: &testnet.Log{}, kernel: fake.NewKernel(fake.Options{})}
	r.configure(fields)
	if err := os.Mkdir(r.path("manifests"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	r.opts = Options{
		Config: cfg, ConfigFile: r.path("sluice.yaml"), Reload: r.load, Manifests: r.path("manifests"),
		Modes: fakeModes(r.kernel), Socket: r.path("sock"), Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, text string) {
	r.Helper()
	temp := r.path(name) + "~"
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
	if err := os.Rename(temp, r.path(name)); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) configure(fields string) {
	r.Helper()
	r.write("sluice.yaml", "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\npluginCacheDir: "+r.path("cache")+"\n"+fields)
}

func (r *rig) load() (*config.Config, error) {
	cfg, err := config.Load(r.path("sluice.yaml"))
	if err == nil {
		cfg.HostnameOverride = "n0"
	}
	return cfg, err
}

// run runs the agent until stop, which returns its error.
func (r *rig) run() (stop func() error) {
	ctx, cancel := context.WithCancel(r.Context())
	ended := r.start(ctx)
	return func() error {
		r.Helper()
		cancel()
		return r.wait(ended)
	}
}

func (r *rig) start(ctx context.Context) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- New(r.opts).Run(ctx) }()
	return ended
}

func (r *rig) wait(ended <-chan error) error {
	r.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		r.Fatalf("the agent does not stop:\n%s", r.log)
		return nil
	}
}
