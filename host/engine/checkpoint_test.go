package engine_test

import (
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
)

// memoryCheckpoint is a checkpoint in memory.
type memoryCheckpoint struct {
	text   []byte
	stores int
}

func (p *memoryCheckpoint) Load() ([]byte, error) {
	if p.text == nil {
		return nil, fs.ErrNotExist
	}
	return p.text, nil
}

func (p *memoryCheckpoint) Store(b []byte) error {
	p.text, p.stores = b, p.stores+1
	return nil
}

func TestDrainResumesAfterRestart(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
				r.checkpoint = &memoryCheckpoint{}
				r.run(fake.Open(r.kernel), stagedDrain{}, false)
				t.Cleanup(r.end)
				r.emit(svc(), eps(1, 2), synced)
				r.emit(eps(-1, 2))
				r.advance(8 * time.Second)
				if how == "killed" { // what a kill leaves is what was stored by then
					left := *r.checkpoint
					r.checkpoint = &left
				}
				r.stop()
				<-r.ended
				r.run(fake.Open(r.kernel), stagedDrain{}, false)
				r.emit(svc(), eps(-1, 2), synced)
				r.expect("going on", "1:1 2:2 forward")
				r.advance(3 * time.Second)
				r.expect("the stage ends at its time", "1:0 2:1 forward")
			})
		})
	}
}

func TestDamagedCheckpointIsLoggedAndIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.checkpoint = &memoryCheckpoint{text: []byte("{")}
		r.run(fake.Open(r.kernel), stagedDrain{}, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(-1, 2), synced)
		r.expect("planned all the same", "1:1 2:2 forward")
		if !strings.Contains(r.log.String(), "checkpoint is unusable") {
			t.Fatalf("not logged:\n%s", r.log)
		}
	})
}

func TestCheckpointIsNotWrittenWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.checkpoint = &memoryCheckpoint{}
		r.run(fake.Open(r.kernel), stagedDrain{}, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1, 2), synced)
		r.advance(time.Minute)
		before := r.checkpoint.stores
		r.advance(time.Hour)
		if before == 0 || r.checkpoint.stores != before {
			t.Fatalf("%d stores, then %d", before, r.checkpoint.stores)
		}
	})
}
