package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// pullLab is a puller whose pulls take some time, and what became of them.
type pullLab struct {
	*puller
	takes   map[imageref.Ref]time.Duration // of a pull; negative: it fails after that time
	begin   time.Time
	running map[string]int // by registry
	most    int
	tries   map[imageref.Ref][]time.Duration
	at      map[imageref.Ref]time.Duration // when it was pulled
	lock    chan struct{}
}

func newPullLab(takes map[imageref.Ref]time.Duration) *pullLab {
	l := &pullLab{
		takes: takes, begin: time.Now(), running: map[string]int{}, tries: map[imageref.Ref][]time.Duration{}, at: map[imageref.Ref]time.Duration{}, lock: make(chan struct{}, 1),
	}
	l.puller = newPuller(l, config.Default, slog.New(slog.DiscardHandler))
	return l
}

func (l *pullLab) do(f func()) {
	l.lock <- struct{}{}
	defer func() { <-l.lock }()
	f()
}

// MissingImages implements pluginImages.
func (l *pullLab) MissingImages(*config.Config) (out []imageref.Ref) {
	l.do(func() {
		for ref := range l.takes {
			if _, ok := l.at[ref]; !ok {
				out = append(out, ref)
			}
		}
	})
	return out
}

// Pull implements pluginImages.
func (l *pullLab) Pull(ctx context.Context, _ *config.Config, ref imageref.Ref) error {
	var takes time.Duration
	l.do(func() {
		takes = l.takes[ref]
		l.running[ref.Registry]++
		l.most = max(l.most, l.running[ref.Registry])
		l.tries[ref] = append(l.tries[ref], time.Since(l.begin))
	})
	defer l.do(func() { l.running[ref.Registry]-- })
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(max(takes, -takes)):
	}
	if takes < 0 {
		return errors.New("refused")
	}
	l.do(func() { l.at[ref] = time.Since(l.begin) })
	return nil
}

// play runs f beside the puller.
func (l *pullLab) play(t *testing.T, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.run(ctx) }()
	l.wake()
	f()
	cancel()
	<-ended
	if l.most > registrySlots {
		t.Errorf("%d pulls from a registry at the same time", l.most)
	}
}

// attempts returns when an image was tried, and whether it was pulled.
func (l *pullLab) attempts(ref imageref.Ref) (tries []time.Duration, pulled bool) {
	l.do(func() { tries = slices.Clone(l.tries[ref]); _, pulled = l.at[ref] })
	return tries, pulled
}

func images(n int, of string) (out []imageref.Ref) {
	for i := range n {
		out = append(out, ociregistry.Ref(of, fmt.Sprintf("acme/p%02d", i)))
	}
	return out
}

// never is longer than a pull may take.
const never = -2 * time.Minute

// TestSlowPullsDelayOthers: those of their registry by seconds, those of another one not at all.
func TestSlowPullsDelayOthers(t *testing.T) {
	for registryOf, within := range map[string]time.Duration{"slow.test": 21 * time.Second, "other.test": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := newPullLab(map[imageref.Ref]time.Duration{})
			for _, ref := range images(9, "slow.test") {
				l.takes[ref] = never
			}
			quick := ociregistry.Ref(registryOf, "acme/quick")
			l.takes[quick] = 10 * time.Millisecond
			l.play(t, func() { time.Sleep(time.Minute) })
			if at, ok := l.at[quick]; !ok || at > within {
				t.Errorf("of %s: %t after %s", registryOf, ok, at)
			}
		})
	}
}

// TestSlowNetworkPullsAll: a pull that needs longer than others wait for gets the time that it needs.
func TestSlowNetworkPullsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := map[imageref.Ref]time.Duration{}
		for _, ref := range images(16, "far.test") {
			takes[ref] = 100 * time.Second
		}
		l := newPullLab(takes)
		l.play(t, func() { time.Sleep(30 * time.Minute) })
		if len(l.at) != len(takes) {
			t.Errorf("%d of %d were pulled", len(l.at), len(takes))
		}
	})
}

// TestEachImageIsRetriedByItself: with delays that grow, whatever becomes of others meanwhile.
func TestEachImageIsRetriedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, late := ociregistry.Ref("a.test", "acme/bad"), ociregistry.Ref("a.test", "acme/late")
		l := newPullLab(map[imageref.Ref]time.Duration{bad: -time.Millisecond})
		l.play(t, func() {
			time.Sleep(40 * time.Second)
			before, _ := l.attempts(bad)
			if len(before) < 4 || len(before) > 6 { // after 1, 2, 4, 8 and 16 s, and up to a half more
				t.Errorf("attempts at %s", before)
			}
			l.do(func() { l.takes[late] = time.Millisecond })
			l.wake()
			time.Sleep(time.Second)
			if after, _ := l.attempts(bad); len(after) > len(before)+1 {
				t.Errorf("attempts at %s, and with a new image %s", before, after)
			}
			if _, ok := l.attempts(late); !ok {
				t.Error("the new image is not pulled")
			}
			time.Sleep(10 * time.Minute)
			all, _ := l.attempts(bad)
			if last := all[len(all)-2:]; last[1]-last[0] < maxPullRetry {
				t.Errorf("attempts at %s", all)
			}
		})
	})
}

// TestChangedFileRetriesAllImages: also those that are being pulled with what it was before.
func TestChangedFileRetriesAllImages(t *testing.T) {
	ca := t.TempDir() + "/ca.crt"
	synctest.Test(t, func(t *testing.T) {
		bad, slow := ociregistry.Ref("a.test", "acme/bad"), ociregistry.Ref("b.test", "acme/slow")
		l := newPullLab(map[imageref.Ref]time.Duration{bad: -time.Millisecond, slow: -65 * time.Second})
		cfg := config.Default()
		cfg.PluginImages.CAFile = ca
		l.config = func() *config.Config { return cfg }
		l.play(t, func() {
			time.Sleep(time.Minute)
			if err := os.WriteFile(ca, []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			l.wake()
			time.Sleep(10 * time.Second)
			for ref, at := range map[imageref.Ref]time.Duration{bad: time.Minute, slow: 65 * time.Second} {
				if tries, _ := l.attempts(ref); !slices.Contains(tries, at) {
					t.Errorf("%s: attempts at %s, want one at %s", ref, tries, at)
				}
			}
		})
	})
}

// TestImageThatIsNoLongerWanted: its pull ends, and frees its slot.
func TestImageThatIsNoLongerWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, stays := images(4, "a.test"), ociregistry.Ref("a.test", "acme/stays")
		l := newPullLab(map[imageref.Ref]time.Duration{})
		for _, ref := range gone {
			l.takes[ref] = never
		}
		l.play(t, func() {
			time.Sleep(time.Second)
			l.do(func() { clear(l.takes); l.takes[stays] = time.Millisecond })
			l.wake()
			time.Sleep(time.Second)
			if _, ok := l.attempts(stays); !ok {
				t.Error("the other one is not pulled")
			}
		})
	})
}
