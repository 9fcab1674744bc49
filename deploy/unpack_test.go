package deploy

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

// image is an image built with the command in image/ and unpacked.
type image struct {
	layout string
	digest string // as printed by the command
	root   string // its files
	config v1.Image
}

// built is the image shared by the tests.
var built shared

type shared struct {
	once sync.Once
	dir  string
	img  *image
	err  error
}

const tag = "v0.0.0-test"

// sharedImage builds the image from a copy of the sources, which do not change meanwhile.
func sharedImage(t *testing.T) *image {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "sluice-deploy-"); built.err != nil {
			return
		}
		sources := filepath.Join(built.dir, "sources")
		if built.err = copySources("..", sources); built.err == nil {
			built.img, built.err = buildImage(t.Context(), sources, filepath.Join(built.dir, "image"))
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.img
}

func (s *shared) remove() {
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *shared) sources() string { return filepath.Join(s.dir, "sources") }

func copySources(from, to string) error {
	for _, dir := range []string{"cmd", "host", "plugins", "sdk", "deploy"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(from, dir))); err != nil {
			return err
		}
	}
	for _, file := range []string{"go.mod", "go.sum", "LICENSE"} {
		text, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// buildImage builds the image for this machine's platform only, to reuse the build cache.
func buildImage(ctx context.Context, sources, out string) (*image, error) {
	cmd := exec.CommandContext(ctx, "go", "run", "./deploy/image", "-o", out, "-tar", out+".tar", "-version", tag, "-time", "1700000000",
		"-platforms", "linux/"+runtime.GOARCH, "-compiled", "linux/"+runtime.GOARCH)
	cmd.Dir = sources
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	img := &image{layout: out, digest: strings.TrimSpace(string(output)), root: out + ".root"}
	return img, img.unpack(ctx)
}

// unpack unpacks a layout as a container runtime does.
func (i *image) unpack(ctx context.Context) error {
	store, err := oci.NewFromFS(ctx, os.DirFS(i.layout))
	if err != nil {
		return err
	}
	desc, err := oras.Resolve(ctx, store, tag, oras.ResolveOptions{TargetPlatform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}})
	if err != nil {
		return err
	}
	var m v1.Manifest
	if err := fetchJSON(ctx, store, desc, &m); err != nil {
		return err
	}
	if err := fetchJSON(ctx, store, m.Config, &i.config); err != nil {
		return err
	}
	if err := os.Mkdir(i.root, 0o755); err != nil {
		return err
	}
	for _, l := range m.Layers {
		if err := unpackLayer(ctx, store, l, i.root); err != nil {
			return fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return nil
}

func fetchJSON(ctx context.Context, from oras.ReadOnlyTarget, d v1.Descriptor, into any) error {
	body, err := content.FetchAll(ctx, from, d)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

func unpackLayer(ctx context.Context, from oras.ReadOnlyTarget, d v1.Descriptor, root string) error {
	blob, err := from.Fetch(ctx, d)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := gzip.NewReader(blob)
	if err != nil {
		return err
	}
	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(path, h.FileInfo().Mode())
		case tar.TypeReg:
			var f *os.File
			if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode()); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		default:
			err = fmt.Errorf("%s: type %c", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
}
