package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

const (
	pulls = 4 // at the same time
	// Delay before a module is read again that could not be read. It doubles, and up to a half is added at random.
	minModuleRetry, maxModuleRetry = 5 * time.Second, 5 * time.Minute
	moduleTimeout                  = 5 * time.Minute
)

// module is what is known of a module without running it.
type module struct {
	digest   string
	manifest *manifest.Manifest
	settings []string // a line for each field
	err      error
	reason   string // of err
}

// check returns an error that begins with the path of the field, if settings are not as the module's schema says.
func (m *module) check(settings string) error {
	problems := m.manifest.CheckSettings([]byte(settings))
	var out []string
	for _, p := range problems {
		path := ""
		if p.Path != "" {
			path = "." + p.Path
		}
		out = append(out, path+": "+p.Message+spelling.DidYouMean(p.Unknown, p.Known))
	}
	if len(out) == 0 {
		return nil
	}
	return errors.New(strings.Join(out, "; "))
}

// ReadModule reads the module of an image or of a bundled plugin, and verifies its signature if a key, in PEM, is not "". reason
// is why it cannot, in a word.
type ReadModule func(ctx context.Context, source *v1alpha1.PluginSource, key string) (module []byte, reason string, err error)

// modules reads the modules of ServicePlugins, once each: the digest says what they are.
type modules struct {
	read ReadModule

	mu    sync.Mutex
	known map[string]*reading
	wake  chan struct{}
}

type reading struct {
	source  v1alpha1.PluginSource
	key     string
	module  *module // nil: not read yet
	running bool
	next    time.Time
	delay   time.Duration
}

func newModules(read ReadModule) *modules {
	return &modules{read: read, known: map[string]*reading{}, wake: make(chan struct{}, 1)}
}

// get returns the module of a plugin, nil if it has not been read, and whether it will be. It adds what identifies the module to
// wanted.
func (m *modules) get(p *v1alpha1.ServicePlugin, wanted map[string]bool) (_ *module, pending bool) {
	key, signer := identity(p)
	if key == "" {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted[key] = true
	r := m.known[key]
	if r == nil {
		r = &reading{source: p.Spec.Source, key: signer}
		m.known[key] = r
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return r.module, r.module == nil
}

// keep forgets all modules but some.
func (m *modules) keep(wanted map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, r := range m.known {
		if !wanted[key] && !r.running {
			delete(m.known, key)
		}
	}
}

// identity returns what identifies the module of a plugin with who must have signed it, "" if only nodes have it, and the key.
func identity(p *v1alpha1.ServicePlugin) (key, signer string) {
	switch s := &p.Spec.Source; {
	case s.Type == v1alpha1.BundledSource && s.Bundled != nil:
		return "bundled " + s.Bundled.Name, ""
	case s.Type == v1alpha1.ImageSource && s.Image != nil:
		if p.Spec.Verify != nil {
			signer = p.Spec.Verify.Key
		}
		return "image " + s.Image.Ref + " " + signer, signer
	}
	return "", ""
}

// run reads modules until ctx ends, and calls changed after each one.
func (m *modules) run(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, pulls)
	tick := time.NewTicker(minModuleRetry / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-m.wake:
		}
		m.mu.Lock()
		now := time.Now()
		for _, r := range m.known {
			if r.running || r.module != nil && r.module.err == nil || now.Before(r.next) {
				continue
			}
			r.running = true
			wg.Go(func() {
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
					return
				}
				m.finish(r, m.describe(ctx, r))
				<-slots
				changed()
			})
		}
		m.mu.Unlock()
	}
}

func (m *modules) finish(r *reading, got *module) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.module, r.running = got, false
	r.delay = min(max(2*r.delay, minModuleRetry), maxModuleRetry)
	r.next = time.Now().Add(r.delay + rand.N(r.delay/2))
}

// describe reads a module and its manifest.
func (m *modules) describe(ctx context.Context, r *reading) *module {
	ctx, cancel := context.WithTimeout(ctx, moduleTimeout)
	defer cancel()
	content, reason, err := m.read(ctx, &r.source, r.key)
	if err != nil {
		return &module{err: err, reason: reason}
	}
	sum := sha256.Sum256(content)
	out := &module{digest: "sha256:" + hex.EncodeToString(sum[:])}
	if out.manifest, err = manifest.Read(content); err != nil {
		out.err, out.reason = fmt.Errorf("module %s: %w", out.digest, err), "ModuleInvalid"
		return out
	}
	for _, row := range out.manifest.Rows() {
		if len(out.settings) < maxSettingLines {
			out.settings = append(out.settings, row.String())
		}
	}
	return out
}
