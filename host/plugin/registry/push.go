package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	orasregistry "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// Media types of the configuration of an image.
const (
	// WasmConfig is that of the CNCF's layout of WebAssembly artefacts.
	WasmConfig = "application/vnd.wasm.config.v0+json"
	// GenericConfig is for registries that refuse WasmConfig.
	GenericConfig = v1.MediaTypeImageConfig
)

// wasmConfig is the configuration of the CNCF's layout of WebAssembly artefacts. It has no time: the same module has the same
// digest.
type wasmConfig struct {
	Architecture string   `json:"architecture"`
	OS           string   `json:"os"`
	LayerDigests []string `json:"layerDigests"`
}

var moduleMagic = []byte("\x00asm\x01\x00\x00\x00")

// CheckModule returns an error if something does not begin as a WebAssembly module does, or is larger than MaxModule.
func CheckModule(module []byte) error {
	switch {
	case !bytes.HasPrefix(module, moduleMagic):
		return errors.New("not a WebAssembly module: it does not begin with \\0asm and version 1")
	case len(module) > MaxModule:
		return fmt.Errorf("%d bytes, the limit is %d", len(module), MaxModule)
	}
	return nil
}

// Push pushes a module with a tag, and returns its reference by digest. configType is WasmConfig or GenericConfig. The same
// module with the same configType has the same digest in every registry.
func (c *Client) Push(ctx context.Context, to *imageref.TagError, module []byte, configType string) (imageref.Ref, error) {
	registry, repository := to.Split()
	name := to.Name + ":" + to.Tag
	if err := CheckModule(module); err != nil {
		return imageref.Ref{}, err
	}
	layer := descriptor(moduleTypes()[0], module)
	config, err := json.Marshal(wasmConfig{"wasm", "wasip1", []string{layer.Digest.String()}})
	if err != nil {
		return imageref.Ref{}, err
	}
	m := v1.Manifest{Config: descriptor(configType, config), Layers: []v1.Descriptor{layer}}
	ref := imageref.Ref{Registry: registry, Repository: repository}
	err = c.with(ctx, registry, repository, func(ctx context.Context, repo *remote.Repository) (err error) {
		ref.Digest, err = pushManifest(ctx, repo, m, to.Tag, module, config)
		return err
	})
	if err != nil {
		return imageref.Ref{}, fmt.Errorf("image %s: %w", name, err)
	}
	return ref, nil
}

// Target is where a manifest is pushed to: a repository of a registry, or an OCI image layout.
type Target interface {
	content.Storage
	content.Tagger
}

// pushManifest pushes a manifest after the blobs of its configuration and layers that the target does not have, with a tag unless
// that is "", and returns its digest.
func pushManifest(ctx context.Context, to Target, m v1.Manifest, tag string, blobs ...[]byte) (string, error) {
	for _, data := range blobs {
		desc := descriptor("application/octet-stream", data)
		exists, err := to.Exists(ctx, desc)
		if err == nil && !exists {
			err = to.Push(ctx, desc, bytes.NewReader(data))
		}
		if err != nil {
			return "", fmt.Errorf("blob %s: %w", desc.Digest, err)
		}
	}
	m.Versioned, m.MediaType = specs.Versioned{SchemaVersion: 2}, v1.MediaTypeImageManifest
	text, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	desc := descriptor(m.MediaType, text)
	if pusher, ok := to.(orasregistry.ReferencePusher); ok && tag != "" {
		return desc.Digest.String(), pusher.PushReference(ctx, desc, bytes.NewReader(text), tag)
	}
	if err = to.Push(ctx, desc, bytes.NewReader(text)); err == nil && tag != "" {
		err = to.Tag(ctx, desc, tag)
	}
	return desc.Digest.String(), err
}

func descriptor(mediaType string, data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
