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
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/imageref"
)

// Media types of the configuration of an image.
const (
	// WasmConfig is that of the CNCF's layout of WebAssembly artefacts.
	WasmConfig = "application/vnd.wasm.config.v0+json"
	// GenericConfig is for registries that refuse WasmConfig.
	GenericConfig = v1.MediaTypeImageConfig
)

// wasmConfig is the configuration of the CNCF's layout of WebAssembly artefacts. It has no time: the same module has the same digest.
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

// Push pushes a module with a tag, and returns its reference by digest. configType is WasmConfig or GenericConfig. The same module with the
// same configType has the same digest in every registry.
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
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: descriptor(configType, config), Layers: []v1.Descriptor{layer},
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return imageref.Ref{}, err
	}
	desc := descriptor(m.MediaType, manifest)
	err = c.with(ctx, registry, repository, func(ctx context.Context, repo *remote.Repository) error {
		for _, b := range []struct {
			v1.Descriptor
			data []byte
		}{{layer, module}, {m.Config, config}} {
			exists, err := repo.Blobs().Exists(ctx, b.Descriptor)
			if err == nil && !exists {
				err = repo.Blobs().Push(ctx, b.Descriptor, bytes.NewReader(b.data))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", b.MediaType, err)
			}
		}
		return repo.Manifests().PushReference(ctx, desc, bytes.NewReader(manifest), to.Tag)
	})
	if err != nil {
		return imageref.Ref{}, fmt.Errorf("image %s: %w", name, err)
	}
	return imageref.Ref{Registry: registry, Repository: repository, Digest: desc.Digest.String()}, nil
}

func descriptor(mediaType string, data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
