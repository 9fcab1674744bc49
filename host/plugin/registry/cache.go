package registry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// Cache keeps modules in a folder, by digest: HEX.manifest, and HEX.wasm, which the manifest names, and HEX.signatures of the
// manifest. Whatever is in a file, it is used only if it has the digest of its name, or a signature that is verified. Several
// processes may use a folder. Without a folder, modules are kept in memory.
type Cache struct {
	dir string
	now func() time.Time

	mu     sync.Mutex
	memory map[string][]byte // by file name; nil: there is a folder
}

// OpenCache opens a cache. The folder, "" for none, is created if necessary. It may belong to no other user, and only its owner
// may have access.
func OpenCache(dir string, now func() time.Time) (*Cache, error) {
	if dir == "" {
		return &Cache{now: now, memory: map[string][]byte{}}, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache of modules: %w", err)
	}
	if err := safefile.CheckPrivate(dir); err != nil {
		return nil, fmt.Errorf("cache of modules: %w", err)
	}
	return &Cache{dir: dir, now: now}, nil
}

// Get returns a module. The error is fs.ErrNotExist if it is not in the cache, or damaged: then it is deleted.
func (c *Cache) Get(ref imageref.Ref) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	manifest, err := c.read(ref.Hex()+".manifest", ref.Digest, maxManifest)
	if err != nil {
		return nil, err
	}
	layer, err := moduleLayer(manifest)
	if err != nil {
		return nil, err
	}
	return c.read(layer.Digest.Encoded()+".wasm", layer.Digest.String(), MaxModule)
}

func (c *Cache) read(name, digest string, limit int64) ([]byte, error) {
	data, err := c.readAny(name, limit)
	if c.memory == nil && err == nil && digestOf(data) != digest {
		_ = os.Remove(filepath.Join(c.dir, name))
		return nil, fs.ErrNotExist
	}
	return data, err
}

// readAny reads a file whatever its digest.
func (c *Cache) readAny(name string, limit int64) ([]byte, error) {
	if c.memory != nil {
		if data := c.memory[name]; data != nil {
			return data, nil
		}
		return nil, fs.ErrNotExist
	}
	path := filepath.Join(c.dir, name)
	data, err := safefile.Read(path, limit)
	if err != nil && safefile.IsTemporary(err) {
		return nil, err
	}
	if err != nil {
		_ = os.Remove(path)
		return nil, fs.ErrNotExist
	}
	now := c.now()
	_ = os.Chtimes(path, now, now) // the oldest is deleted first
	return data, nil
}

// Put adds a module, and deletes others, of which those with the digests in keep are not, if all together have more than limit
// bytes.
func (c *Cache) Put(a Artifact, keep []imageref.Ref, limit int64) error {
	layer, err := moduleLayer(a.Manifest)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	manifest := digestOf(a.Manifest)[len("sha256:"):] + ".manifest"
	module := layer.Digest.Encoded() + ".wasm"
	kept := map[string]bool{manifest: true, module: true}
	for _, ref := range keep {
		kept[ref.Hex()+".manifest"], kept[ref.Hex()+".signatures"] = true, true
		if m, err := c.read(ref.Hex()+".manifest", ref.Digest, maxManifest); err == nil {
			if l, err := moduleLayer(m); err == nil {
				kept[l.Digest.Encoded()+".wasm"] = true
			}
		}
	}
	if err := c.prune(kept, limit-int64(len(a.Manifest)+len(a.Module)), manifest, module); err != nil {
		return err
	}
	return errors.Join(c.write(module, a.Module), c.write(manifest, a.Manifest))
}

func (c *Cache) write(name string, data []byte) error {
	if c.memory != nil {
		c.memory[name] = data
		return nil
	}
	if err := safefile.Replace(filepath.Join(c.dir, name), data); err != nil {
		return fmt.Errorf("cache of modules: %w", err)
	}
	return nil
}

// fileSyntax is that of the names of files in the cache, also of those that were not completed. Others are left alone.
var fileSyntax = regexp.MustCompile(`^[0-9a-f]{64}\.(manifest|wasm|signatures)(\.new)?$`)

type cached struct {
	name string
	size int64
	used time.Time
}

// prune deletes the files that were not used for the longest time, except those that are kept, until the others have at most
// limit bytes. Files that replaced contains do not count.
func (c *Cache) prune(kept map[string]bool, limit int64, replaced ...string) error {
	list, err := c.list()
	if err != nil {
		return fmt.Errorf("cache of modules: %w", err)
	}
	total := int64(0)
	list = slices.DeleteFunc(list, func(f cached) bool {
		if slices.Contains(replaced, f.name) {
			return true
		}
		total += f.size
		return kept[f.name]
	})
	slices.SortFunc(list, func(a, b cached) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, f := range list {
		if total <= limit {
			break
		}
		if c.memory != nil {
			delete(c.memory, f.name)
		} else if err := os.Remove(filepath.Join(c.dir, f.name)); err != nil {
			continue
		}
		total -= f.size
	}
	if total > limit {
		return fmt.Errorf("cache of modules: %d bytes are missing: the modules of the configuration need more than pluginImages.cacheMiB", total-limit)
	}
	return nil
}

func (c *Cache) list() (out []cached, err error) {
	if c.memory != nil {
		for name, data := range c.memory {
			out = append(out, cached{name: name, size: int64(len(data))})
		}
		return out, nil
	}
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	for _, d := range entries {
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() && fileSyntax.MatchString(d.Name()) {
			out = append(out, cached{d.Name(), info.Size(), info.ModTime()})
		}
	}
	return out, nil
}
