package engine_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
)

func TestRestartWaitsForPlugins(t *testing.T) {
	const syncMessage = "synced all services"
	for name, c := range map[string]struct {
		restart bool
		loaded  time.Duration // when the plugins are there; 0: never
		planned time.Duration
	}{
		"a first start does not wait":  {planned: 0},
		"a restart waits":              {restart: true, loaded: 300 * time.Millisecond, planned: 300 * time.Millisecond},
		"a restart waits for a second": {restart: true, planned: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				r.checkpoint = &memoryCheckpoint{}
				if c.restart {
					r.run(fake.Open(r.kernel), stagedDrain{}, false)
					r.emit(svc(), eps(1, 2), synced)
					r.advance(2 * time.Second)
					r.end()
				}
				before := strings.Count(r.log.String(), syncMessage)
				r.pluginsReady = make(chan struct{})
				r.run(fake.Open(r.kernel), stagedDrain{}, false)
				t.Cleanup(r.end)
				if c.loaded > 0 {
					time.AfterFunc(c.loaded, func() { close(r.pluginsReady) })
				}
				r.emit(svc(), eps(1, 2), synced)
				if c.planned > 0 {
					r.advance(c.planned - time.Millisecond)
					if strings.Count(r.log.String(), syncMessage) != before {
						t.Fatalf("planned early:\n%s", r.log)
					}
					r.advance(2 * time.Millisecond)
				}
				if strings.Count(r.log.String(), syncMessage) != before+1 {
					t.Fatalf("not planned:\n%s", r.log)
				}
				r.emit(eps(1))
				r.expect("later changes wait for nothing", "1:1 forward")
			})
		})
	}
}
