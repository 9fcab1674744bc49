package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
)

// What cosign calls the layer of a signature, and the annotation with it (specs/SIGNATURE_SPEC.md).
const (
	signatureLayer      = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

// Bounds of the signatures of an image.
const (
	maxSignatures = 32
	maxPayload    = 64 << 10 // bytes
)

// signatureTag is the tag of the image with the signatures of an image.
func signatureTag(ref imageref.Ref) string { return "sha256-" + ref.Hex() + ".sig" }

// Signatures returns the signatures of an image, in both formats of cosign; an empty set if it has none. Whether they are good is
// not checked. An error means that there may be more: one that could be read is enough to verify.
func (c *Client) Signatures(ctx context.Context, ref imageref.Ref) (set signature.Set, err error) {
	err = c.with(ctx, ref.Registry, ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		set = signature.Set{}
		err := errors.Join(addSimple(ctx, repo, ref, &set), addBundles(ctx, repo, ref, &set))
		switch {
		case err == nil:
		case ctx.Err() != nil:
			set = signature.Set{}
		default:
			set.AddUnread("entries that could not be read (" + err.Error() + ")")
		}
		return err
	})
	if err != nil {
		return set, fmt.Errorf("signatures of image %s: %w", ref, err)
	}
	return set, nil
}

// addSimple adds signatures in the format of simple signing.
func addSimple(ctx context.Context, repo *remote.Repository, ref imageref.Ref, set *signature.Set) error {
	layers, err := signatureLayers(ctx, repo, ref)
	if err != nil {
		return err
	}
	for _, l := range layers {
		value, err := base64.StdEncoding.DecodeString(l.Annotations[signatureAnnotation])
		if err != nil || l.Size < 0 || l.Size > maxPayload || l.Digest.Validate() != nil {
			set.AddUnread("a damaged signature")
			continue
		}
		desc := v1.Descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}
		payload, err := fetch(l.Size, l.Digest.String(), func() (io.ReadCloser, error) { return repo.Blobs().Fetch(ctx, desc) })
		if err != nil {
			return err
		}
		set.Signatures = append(set.Signatures, signature.Signature{Payload: payload, Value: value})
	}
	return nil
}

// signatureLayers returns the layers of an image's signatures, nil if it has none.
func signatureLayers(ctx context.Context, repo *remote.Repository, ref imageref.Ref) ([]v1.Descriptor, error) {
	desc, body, err := repo.Manifests().FetchReference(ctx, signatureTag(ref))
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if desc.Size > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes, the limit is %d", desc.Size, maxManifest)
	}
	text, err := io.ReadAll(io.LimitReader(body, maxManifest))
	if err != nil {
		return nil, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	layers := slices.DeleteFunc(m.Layers, func(l v1.Descriptor) bool { return l.MediaType != signatureLayer })
	return layers[:min(len(layers), maxSignatures)], nil
}

// PushSignature adds a signature to those that an image has.
func (c *Client) PushSignature(ctx context.Context, ref imageref.Ref, s signature.Signature) error {
	err := c.with(ctx, ref.Registry, ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		layers, err := signatureLayers(ctx, repo, ref)
		if err != nil {
			return err
		}
		if len(layers) == maxSignatures {
			return fmt.Errorf("it has %d signatures, the limit is %d", len(layers), maxSignatures)
		}
		return AddSignature(ctx, repo, ref, s, layers...)
	})
	if err != nil {
		return fmt.Errorf("signature of image %s: %w", ref, err)
	}
	return nil
}

// AddSignature adds a signature to the layers with those that an image has.
func AddSignature(ctx context.Context, to Target, ref imageref.Ref, s signature.Signature, layers ...v1.Descriptor) error {
	layer := descriptor(signatureLayer, s.Payload)
	layer.Annotations = map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(s.Value)}
	layers = append(layers, layer)
	config := v1.Image{RootFS: v1.RootFS{Type: "layers"}}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	_, err = pushManifest(ctx, to, v1.Manifest{Config: descriptor(v1.MediaTypeImageConfig, text), Layers: layers}, signatureTag(ref), text, s.Payload)
	return err
}

// PutSignatures keeps the signatures of an image beside its manifest.
func (c *Cache) PutSignatures(ref imageref.Ref, all []signature.Signature) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.write(ref.Hex()+".signatures", text)
}

// Signatures returns the signatures that are kept of an image. Anybody may have written them.
func (c *Cache) Signatures(ref imageref.Ref) (out []signature.Signature) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := c.readAny(ref.Hex()+".signatures", maxSignatures*2*(maxPayload+maxManifest))
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil
	}
	return out
}
