package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
)

// Layout is an OCI image layout.
type Layout struct {
	Indexes   []Index
	Created   time.Time // zero: unknown
	CreatedBy string
	Level     int // of gzip, for the layers
}

// Index is one image for several platforms.
type Index struct {
	Names       []map[string]string // each is the annotations of a descriptor in index.json, such as v1.AnnotationRefName
	Annotations map[string]string
	Images      []Image
}

// Image is the image of one platform, of one layer.
type Image struct {
	Platform v1.Platform
	Config   v1.ImageConfig
	Files    []File
}

// Write writes the layout and returns the digests of its indexes. An existing directory is replaced after the new one is
// complete.
func (l Layout) Write(ctx context.Context, dir string) ([]digest.Digest, error) {
	if err := replaceable(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".image-")
	if err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	sums, err := l.pushAll(ctx, temp)
	if err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	return sums, nil
}

// replaceable returns an error unless the directory is an image layout, empty or absent, so that a typo does not delete another
// directory.
func replaceable(dir string) error {
	list, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("layout: %w", err)
	case len(list) == 0:
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, v1.ImageLayoutFile)); err != nil {
		return fmt.Errorf("layout: %s is neither empty nor an OCI image layout; not replaced", dir)
	}
	return nil
}

// pushAll writes the blobs and index.json. index.json is not written by oci.Store, which would add the manifest of each platform
// next to the index, so that tools would find several images.
func (l Layout) pushAll(ctx context.Context, dir string) (sums []digest.Digest, err error) {
	store, err := oci.NewStorage(dir)
	if err != nil {
		return nil, err
	}
	top := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, x := range l.Indexes {
		index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Annotations: x.Annotations}
		for _, i := range x.Images {
			manifest, err := l.pushImage(ctx, store, i, x.Annotations)
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", i.Platform.OS, i.Platform.Architecture, err)
			}
			index.Manifests = append(index.Manifests, manifest)
		}
		desc, err := pushJSON(ctx, store, v1.MediaTypeImageIndex, index)
		if err != nil {
			return nil, err
		}
		sums = append(sums, desc.Digest)
		for _, name := range x.Names {
			desc.Annotations = name
			top.Manifests = append(top.Manifests, desc)
		}
	}
	return sums, errors.Join(
		writeJSON(filepath.Join(dir, v1.ImageLayoutFile), v1.ImageLayout{Version: v1.ImageLayoutVersion}),
		writeJSON(filepath.Join(dir, v1.ImageIndexFile), top),
		os.RemoveAll(filepath.Join(dir, "ingest"))) // where the storage wrote before it renamed
}

func writeJSON(path string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o644)
}

func (l Layout) pushImage(ctx context.Context, store *oci.Storage, i Image, annotations map[string]string) (v1.Descriptor, error) {
	files, err := newLayer(i.Files, l.Created, l.Level)
	if err != nil {
		return v1.Descriptor{}, err
	}
	layer, err := push(ctx, store, v1.MediaTypeImageLayerGzip, files.gzip)
	if err != nil {
		return v1.Descriptor{}, err
	}
	history := v1.History{CreatedBy: l.CreatedBy}
	config := v1.Image{
		Platform: i.Platform,
		Config:   i.Config,
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{files.diffID}},
	}
	if !l.Created.IsZero() {
		config.Created, history.Created = &l.Created, &l.Created
	}
	config.History = []v1.History{history}
	c, err := pushJSON(ctx, store, v1.MediaTypeImageConfig, config)
	if err != nil {
		return v1.Descriptor{}, err
	}
	m, err := pushJSON(ctx, store, v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: c, Layers: []v1.Descriptor{layer}, Annotations: annotations,
	})
	m.Platform = &i.Platform
	return m, err
}

func pushJSON(ctx context.Context, store *oci.Storage, mediaType string, value any) (v1.Descriptor, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, err
	}
	return push(ctx, store, mediaType, body)
}

func push(ctx context.Context, store *oci.Storage, mediaType string, body []byte) (v1.Descriptor, error) {
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(body), Size: int64(len(body))}
	there, err := store.Exists(ctx, d) // platforms may share a layer
	if err != nil || there {
		return d, err
	}
	return d, store.Push(ctx, d, bytes.NewReader(body))
}
