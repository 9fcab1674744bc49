package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// Precompiled is code that has been compiled in advance, such as that of the bundled plugins in sluice's image: a folder with
// entries like those of the compile cache, which nobody writes to any more. Where the digests come from is trusted, the folder is
// not: an entry of which a byte differs is not used.
type Precompiled struct {
	Dir     string
	Digests map[string]string // of the manifest of each entry, by the entry's name
}

// ParsePrecompiled returns the code in a folder from the text that Precompile has returned for its entries, joined by commas.
func ParsePrecompiled(dir, text string) (Precompiled, error) {
	p := Precompiled{Dir: dir, Digests: map[string]string{}}
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		name, digest, ok := strings.Cut(pair, ":")
		if !ok || len(name) != 2*sha256.Size || len(digest) != 2*sha256.Size || strings.Trim(name+digest, "0123456789abcdef") != "" {
			return Precompiled{}, fmt.Errorf("precompiled code: %q is not NAME:DIGEST", pair)
		}
		p.Digests[name] = digest
	}
	return p, nil
}

// open returns an entry after verifying it. The error is fs.ErrNotExist if there is none.
func (p *Precompiled) open(name string) (*cacheEntry, error) {
	digest, ok := p.Digests[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	e := &cacheEntry{dir: filepath.Join(p.Dir, name), check: safefile.CheckReadOnly}
	if err := safefile.CheckReadOnly(p.Dir); err != nil {
		return nil, err
	}
	manifest, err := readManifest(filepath.Join(e.dir, manifestName))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(manifest); hex.EncodeToString(sum[:]) != digest {
		return nil, errors.New("the manifest is another one than that which this program was built with")
	}
	return e, e.verify(manifest)
}

// Precompile compiles a module for this program's architecture into a new entry in dir, for processors with the features that
// this one has, and returns the entry's name and digest. The module is trusted: it is compiled in this process, without limits of
// time and memory.
func Precompile(ctx context.Context, dir string, module []byte) (pair string, err error) {
	h, err := New(ctx, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	h.cache.dir = dir
	key := codeKey{revision(module), h.limits.MemoryPages}
	c := &code{key: key}
	if err := h.compile(ctx, c, h.log, module); err != nil {
		return "", err
	}
	if err := errors.Join(c.close(&h.memory), h.Close(ctx)); err != nil {
		return "", err
	}
	name := entryName(key.revision, &h.limits.Module)
	manifest, err := readManifest(filepath.Join(dir, name, manifestName))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(manifest)
	return name + ":" + hex.EncodeToString(sum[:]), nil
}
