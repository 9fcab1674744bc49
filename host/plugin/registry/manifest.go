package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// moduleTypes returns the media types of layers that are modules: that of the CNCF's layout of WebAssembly artefacts, and the
// older one of wasm-to-oci.
func moduleTypes() []string {
	return []string{"application/wasm", "application/vnd.wasm.content.layer.v1+wasm"}
}

// moduleLayer returns the layer of a manifest that is the module. The configuration is not read, and may have any media type:
// some registries refuse that of the CNCF's layout, application/vnd.wasm.config.v0+json.
func moduleLayer(manifest []byte) (v1.Descriptor, error) {
	var m v1.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return v1.Descriptor{}, fmt.Errorf("manifest: %w", err)
	}
	var index v1.Index
	if json.Unmarshal(manifest, &index) == nil && len(index.Manifests) > 0 {
		return v1.Descriptor{}, errors.New("it is an index of several manifests: want the digest of one of them, whose layer is a WebAssembly module")
	}
	var found []v1.Descriptor
	for _, layer := range m.Layers {
		if slices.Contains(moduleTypes(), layer.MediaType) {
			found = append(found, layer)
		}
	}
	switch {
	case len(found) == 0 && len(m.Layers) > 0:
		return v1.Descriptor{}, fmt.Errorf("no layer is a WebAssembly module (media type %s): the first one is %.100q", moduleTypes()[0], m.Layers[0].MediaType)
	case len(found) != 1:
		return v1.Descriptor{}, fmt.Errorf("%d layers are WebAssembly modules, want one", len(found))
	}
	layer := found[0]
	switch err := layer.Digest.Validate(); {
	case err != nil || layer.Digest.Algorithm() != "sha256":
		return v1.Descriptor{}, fmt.Errorf("layer: digest %.100q is not sha256: followed by 64 hexadecimal digits", layer.Digest)
	case layer.Size < 0 || layer.Size > MaxModule:
		return v1.Descriptor{}, fmt.Errorf("layer %s has %d bytes, the limit is %d", layer.Digest, layer.Size, MaxModule)
	}
	return v1.Descriptor{MediaType: layer.MediaType, Digest: layer.Digest, Size: layer.Size}, nil // no other field is followed
}
