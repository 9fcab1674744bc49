package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/registry"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// images are the modules that are in registries. They are loaded from a cache only, or pulled when they are loaded.
type images struct {
	cache *registry.Cache
	err   error // why there is no cache

	mu         sync.Mutex
	cachedOnly bool
	failed     map[imageref.Ref]error // why the last pull of an image has failed
	pulls      metrics.ImagePulls
}

// openImages opens the cache beside that of compiled plugins; "": in memory. Without images it is not used.
func openImages(dir string) *images {
	if dir != "" {
		dir = filepath.Join(dir, "modules")
	}
	i := &images{failed: map[imageref.Ref]error{}}
	i.cache, i.err = registry.OpenCache(dir, time.Now)
	return i
}

// read returns the module of an image.
func (i *images) read(ctx context.Context, cfg *config.Config, ref imageref.Ref) ([]byte, error) {
	if i.err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, i.err)
	}
	module, err := i.cache.Get(ref)
	unverified := error(nil)
	if err == nil {
		if unverified = i.verified(cfg, ref); unverified == nil {
			return module, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	i.mu.Lock()
	only, failed := i.cachedOnly, i.failed[ref]
	i.mu.Unlock()
	switch {
	case only && failed != nil:
		return nil, failed
	case only && unverified != nil:
		return nil, unverified
	case only:
		return nil, because(Pulling, fmt.Errorf("image %s: not pulled yet", ref))
	}
	if err := i.pull(ctx, cfg, ref); err != nil {
		return nil, err
	}
	return i.cache.Get(ref)
}

// pull pulls an image into the cache.
func (i *images) pull(ctx context.Context, cfg *config.Config, ref imageref.Ref) (err error) {
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if err == nil {
			delete(i.failed, ref)
			i.pulls.Succeeded++
		} else if !errors.Is(context.Cause(ctx), context.Canceled) { // otherwise sluice ends, or the image is no longer wanted
			i.failed[ref] = err
			i.pulls.Failed++
		}
	}()
	if i.err != nil {
		return fmt.Errorf("image %s: %w", ref, i.err)
	}
	client, err := newClient(&cfg.PluginImages)
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	artifact, err := client.Pull(ctx, ref)
	if err != nil {
		return err
	}
	if keys := verifyKeys(cfg, ref); len(keys) > 0 {
		signatures, err := client.Signatures(ctx, ref)
		if err != nil && len(signatures.Signatures) == 0 {
			return err
		}
		for _, key := range keys {
			if err := verify(ref, key, signatures); err != nil {
				return err
			}
		}
		if err := i.cache.PutSignatures(ref, signatures.Signatures); err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
	}
	if err := i.cache.Put(artifact, cfg.Images(), int64(cfg.PluginImages.CacheMiB)<<20); err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	return nil
}

// verifyKeys returns the files with the keys that must have signed an image.
func verifyKeys(cfg *config.Config, ref imageref.Ref) (out []string) {
	for i := range cfg.Plugins {
		if p := &cfg.Plugins[i]; p.Image == ref && p.Verify.Key != "" && !slices.Contains(out, p.Verify.Key) {
			out = append(out, p.Verify.Key)
		}
	}
	return out
}

// maxKey bounds a file with a public key, in bytes.
const maxKey = 64 << 10

// verify returns an error unless the key in a file has signed an image.
func verify(ref imageref.Ref, file string, signatures signature.Set) error {
	text, err := []byte(file), error(nil)
	if !strings.HasPrefix(file, "-----BEGIN") { // the key of a ServicePlugin
		text, err = safefile.Read(file, maxKey)
	}
	if err != nil {
		return fmt.Errorf("image %s: public key: %w", ref, err)
	}
	key, err := signature.ParsePublicKey(text)
	if err != nil {
		return fmt.Errorf("image %s: %s: %w", ref, file, err)
	}
	if err := key.Verify(ref.Digest, signatures); err != nil {
		return because(SignatureInvalid, fmt.Errorf("image %s: verify with %s: %w", ref, file, err))
	}
	return nil
}

// verified returns an error unless the keys of the configuration have signed an image, as the signatures in the cache say.
func (i *images) verified(cfg *config.Config, ref imageref.Ref) error {
	for _, key := range verifyKeys(cfg, ref) {
		if err := verify(ref, key, signature.Set{Signatures: i.cache.Signatures(ref)}); err != nil {
			return err
		}
	}
	return nil
}

// PullVerified pulls the module of an image, and returns an error unless the key, in PEM, has signed the image; "": nobody must
// have.
func PullVerified(ctx context.Context, c *config.PluginImages, ref imageref.Ref, key string) ([]byte, error) {
	client, err := newClient(c)
	if err != nil {
		return nil, because(PullFailed, fmt.Errorf("image %s: %w", ref, err))
	}
	artifact, err := client.Pull(ctx, ref)
	if err != nil {
		return nil, because(PullFailed, err)
	}
	if key == "" {
		return artifact.Module, nil
	}
	signatures, err := client.Signatures(ctx, ref)
	if err != nil && len(signatures.Signatures) == 0 {
		return nil, because(PullFailed, err)
	}
	return artifact.Module, verify(ref, key, signatures)
}

func newClient(c *config.PluginImages) (*registry.Client, error) {
	return registry.NewClient(registry.Options{Settings: registry.Settings{DockerConfig: c.DockerConfig, CAFile: c.CAFile, PlainHTTP: c.PlainHTTP}})
}

// ResolveTag asks a registry for the digest that the tag of an image has now.
func ResolveTag(ctx context.Context, image *config.UnpinnedError) (imageref.Ref, error) {
	client, err := newClient(image.Images)
	if err != nil {
		return imageref.Ref{}, err
	}
	return client.Resolve(ctx, image.TagError)
}

// LoadCachedOnly has Load take the modules of images from the cache only, and never wait for a registry: Pull pulls them.
func (s *Set) LoadCachedOnly() {
	s.images.mu.Lock()
	s.images.cachedOnly = true
	s.images.mu.Unlock()
}

// MissingImages returns the images of a configuration whose modules are not in the cache, or not with the signatures that must be
// there.
func (s *Set) MissingImages(cfg *config.Config) (out []imageref.Ref) {
	for _, ref := range cfg.Images() {
		if s.images.err != nil {
			out = append(out, ref)
		} else if _, err := s.images.cache.Get(ref); err != nil || s.images.verified(cfg, ref) != nil {
			out = append(out, ref)
		}
	}
	s.images.mu.Lock()
	maps.DeleteFunc(s.images.failed, func(ref imageref.Ref, _ error) bool { return !slices.Contains(out, ref) })
	s.images.mu.Unlock()
	return out
}

// Pull pulls an image of a configuration into the cache. It takes at most a few minutes.
func (s *Set) Pull(ctx context.Context, cfg *config.Config, ref imageref.Ref) error {
	return s.images.pull(ctx, cfg, ref)
}

// ImagePulls returns how many pulls there were.
func (s *Set) ImagePulls() metrics.ImagePulls {
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	return s.images.pulls
}
