package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
)

// image is the image of one platform.
type image struct {
	platform platform
	files    []file
}

// writeLayout writes the images as an OCI image layout with one index and returns the digest of the index. An existing
// directory is replaced after the new one is complete.
func writeLayout(ctx context.Context, o options, images []image) (digest.Digest, error) {
	if err := replaceable(o.out); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(o.out), ".image-")
	if err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	sum, err := pushAll(ctx, temp, o, images)
	if err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	if err := os.RemoveAll(o.out); err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	if err := os.Rename(temp, o.out); err != nil {
		return "", fmt.Errorf("layout: %w", err)
	}
	return sum, nil
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
func pushAll(ctx context.Context, dir string, o options, images []image) (digest.Digest, error) {
	store, err := oci.NewStorage(dir)
	if err != nil {
		return "", err
	}
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Annotations: about(o)}
	for _, i := range images {
		manifest, err := pushImage(ctx, store, o, i)
		if err != nil {
			return "", fmt.Errorf("%s: %w", i.platform, err)
		}
		index.Manifests = append(index.Manifests, manifest)
	}
	desc, err := pushJSON(ctx, store, v1.MediaTypeImageIndex, index)
	if err != nil {
		return "", err
	}
	tagged := desc
	tagged.Annotations = map[string]string{v1.AnnotationRefName: o.tag}
	return desc.Digest, errors.Join(
		writeJSON(filepath.Join(dir, v1.ImageLayoutFile), v1.ImageLayout{Version: v1.ImageLayoutVersion}),
		writeJSON(filepath.Join(dir, v1.ImageIndexFile), v1.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{tagged},
		}),
		os.RemoveAll(filepath.Join(dir, "ingest"))) // where the storage wrote before it renamed
}

func writeJSON(path string, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o644)
}

func pushImage(ctx context.Context, store *oci.Storage, o options, i image) (v1.Descriptor, error) {
	l, err := newLayer(i.files, o.created)
	if err != nil {
		return v1.Descriptor{}, err
	}
	layer, err := push(ctx, store, v1.MediaTypeImageLayerGzip, l.gzip)
	if err != nil {
		return v1.Descriptor{}, err
	}
	p := v1.Platform{OS: i.platform.os, Architecture: i.platform.arch}
	history := v1.History{CreatedBy: module + "/deploy/image"}
	config := v1.Image{
		Platform: p,
		// uid 0 with the capabilities of the Pod's security context; deploy/README.md explains why.
		Config: v1.ImageConfig{User: "0:0", Entrypoint: []string{"/sluice"}, WorkingDir: "/", Labels: about(o)},
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{l.diffID}},
	}
	if !o.created.IsZero() {
		config.Created, history.Created = &o.created, &o.created
	}
	config.History = []v1.History{history}
	c, err := pushJSON(ctx, store, v1.MediaTypeImageConfig, config)
	if err != nil {
		return v1.Descriptor{}, err
	}
	m, err := pushJSON(ctx, store, v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: c, Layers: []v1.Descriptor{layer}, Annotations: about(o),
	})
	m.Platform = &p
	return m, err
}

// about returns the descriptive annotations of the OCI image specification.
func about(o options) map[string]string {
	all := map[string]string{
		v1.AnnotationTitle:       "sluice",
		v1.AnnotationDescription: "A Kubernetes Service proxy with WebAssembly policies",
		v1.AnnotationVersion:     o.version,
		v1.AnnotationRevision:    o.revision,
		v1.AnnotationSource:      "https://" + module,
		v1.AnnotationLicenses:    "Apache-2.0",
	}
	if !o.created.IsZero() {
		all[v1.AnnotationCreated] = o.created.Format(time.RFC3339)
	}
	maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
	return all
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
