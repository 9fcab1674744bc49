package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

func TestFileThatCouldNotBeOpenedIsReadLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	read := make(chan error)
	ended := make(chan error, 1)
	go func() {
		ended <- watchFiles(ctx, func() []string { return []string{path} }, nil, func() error {
			_, err := safefile.Read(path, 100)
			read <- err
			return err
		}, nil, nil)
	}()
	next := func(want func(error) bool) {
		t.Helper()
		for {
			select {
			case err := <-read:
				if want(err) {
					return
				}
			case <-ctx.Done():
				t.Fatal("not read")
			}
		}
	}
	next(func(err error) bool { return errors.Is(err, syscall.ENOENT) })
	if err := safefile.Replace(path+"0", nil); err != nil {
		t.Fatal(err)
	}
	testenv.WithoutDescriptors(t, func() {
		if err := syscall.Rename(path+"0", path); err != nil {
			t.Fatal(err)
		}
		for range 3 { // of which the event caused at most two: it is retried
			next(func(err error) bool { return errors.Is(err, syscall.EMFILE) })
		}
	})
	next(func(err error) bool { return err == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPluginThatCouldNotStartIsLoadedAgain, without a change of its file.
func TestPluginThatCouldNotStartIsLoadedAgain(t *testing.T) {
	for name, process := range map[string]string{"late": "plugin-process", "its process is killed": "killed-process"} {
		t.Run(name, func(t *testing.T) {
			h, err := wasm.New(t.Context(), wasm.Options{
				Process: []string{"agent.test", process}, Limits: wasm.Limits{InitTime: time.Millisecond, InitFuel: 1 << 60},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close(t.Context())
			module := evilModule(t, `(func $evil (param i32 i32 i64) (result i64) (local.get 2))
				(func (export "_initialize") (loop $l (br $l)))`)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			loads := 0
			err = watchFiles(ctx, func() []string { return nil }, nil, func() error {
				if loads++; loads > 2 {
					cancel()
				}
				_, err := h.Load(ctx, "late", module, nil)
				return fmt.Errorf("plugin late: %w", err)
			}, nil, nil)
			if err != nil || loads <= 2 {
				t.Errorf("%v after %d loads", err, loads)
			}
		})
	}
}
