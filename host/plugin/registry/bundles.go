package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
)

// Bundles of sigstore are referrers of an image, which a registry lists, or the tag sha256-HEX (sigstore/cosign,
// specs/BUNDLE_SPEC.md).
const (
	bundleTypes         = "application/vnd.dev.sigstore.bundle"     // of all versions, as a prefix
	cosignArtifact      = "application/vnd.dev.cosign.artifact.sig" // simple signing as a referrer, which cosign 2 could be asked for
	bundleContent       = "dev.sigstore.bundle.content"             // annotations
	bundlePredicateType = "dev.sigstore.bundle.predicateType"
)

// Bounds of what refers to an image. Beside those of an image's signatures, most are attestations: a scanner may add one each
// night.
const (
	maxReferrerList  = 4 << 20 // a page, bytes: what registries accept as an index
	maxReferrerPages = 16
	maxReferrers     = 128 // manifests that are read
	maxBundle        = 2 * maxPayload
)

// addBundles adds signatures in bundles.
func addBundles(ctx context.Context, repo *remote.Repository, ref imageref.Ref, set *signature.Set) error {
	l, err := listBundles(ctx, repo, ref, set)
	if err != nil {
		return err
	}
	read, lost := 0, 0
	var first error
	for n, digest := range append(l.signatures, l.unknown...) {
		if read == maxSignatures || n >= maxReferrers {
			l.more++
			continue
		}
		switch text, err := fetchBundle(ctx, repo, digest); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNoBundle):
		case errors.Is(err, errAttestation):
			l.attestations++
		case err != nil:
			lost++
			first = cmp.Or(first, err)
		default:
			read++
			if s, err := signature.ParseBundle(text); err != nil {
				set.AddUnread(err.Error())
			} else {
				set.Signatures = append(set.Signatures, s)
			}
		}
	}
	if l.attestations > 0 {
		set.AddUnread(fmt.Sprintf("attestations (%d)", l.attestations))
	}
	if lost > 0 {
		set.AddUnread(fmt.Sprintf("bundles that could not be read (%d): %v", lost, first))
	}
	if l.more > 0 {
		set.AddUnread(fmt.Sprintf("more bundles than are read (%d)", l.more))
	}
	if l.cut {
		set.AddUnread(fmt.Sprintf("more than %d pages of referrers", maxReferrerPages))
	}
	return nil
}

// bundleList is what refers to an image.
type bundleList struct {
	signatures, unknown []string // digests of bundles that say of themselves that they are signatures, and of those that say nothing
	attestations, more  int      // bundles that are not read
	cut                 bool
}

// listBundles lists the bundles of an image.
func listBundles(ctx context.Context, repo *remote.Repository, ref imageref.Ref, set *signature.Set) (l bundleList, err error) {
	repo.MaxMetadataBytes, repo.ReferrerListMaxPages = maxReferrerList, maxReferrerPages
	desc := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.Digest(ref.Digest)}
	err = repo.Referrers(ctx, desc, "", func(page []v1.Descriptor) error {
		for _, d := range page {
			predicate := d.Annotations[bundlePredicateType]
			unknown := d.ArtifactType == "" || d.ArtifactType == v1.MediaTypeEmptyJSON // some registries have that of the configuration
			switch {
			case !unknown && !strings.HasPrefix(d.ArtifactType, bundleTypes):
				if strings.Contains(d.ArtifactType, "signature") || strings.HasPrefix(d.ArtifactType, cosignArtifact) {
					set.AddUnread(fmt.Sprintf("a signature of type %.100q", d.ArtifactType))
				}
			case predicate != "" && predicate != signature.Predicate:
				l.attestations++
			case d.Digest.Validate() != nil:
				l.more++
			case predicate == signature.Predicate && len(l.signatures) < maxReferrers:
				l.signatures = append(l.signatures, d.Digest.String())
			case predicate == "" && len(l.unknown) < maxReferrers:
				l.unknown = append(l.unknown, d.Digest.String())
			default:
				l.more++
			}
		}
		return nil
	})
	if l.cut = errors.Is(err, errdef.ErrTooManyPages); l.cut {
		err = nil
	}
	if err != nil {
		return bundleList{}, fmt.Errorf("referrers: %w", err)
	}
	return l, nil
}

var errNoBundle, errAttestation = errors.New("no bundle"), errors.New("an attestation")

// fetchBundle reads a bundle. The error is errNoBundle or errAttestation if its manifest says that it is no signature.
func fetchBundle(ctx context.Context, repo *remote.Repository, manifest string) ([]byte, error) {
	text, err := fetch(-1, manifest, func() (io.ReadCloser, error) {
		_, body, err := repo.Manifests().FetchReference(ctx, manifest)
		return body, err
	})
	if err != nil {
		return nil, err
	}
	var m v1.Manifest
	switch err := json.Unmarshal(text, &m); {
	case err != nil:
		return nil, fmt.Errorf("manifest: %w", err)
	case m.Annotations[bundlePredicateType] != "" && m.Annotations[bundlePredicateType] != signature.Predicate:
		return nil, errAttestation
	case len(m.Layers) != 1 || !strings.HasPrefix(m.Layers[0].MediaType, bundleTypes):
		return nil, errNoBundle
	case m.Layers[0].Size < 0 || m.Layers[0].Size > maxBundle:
		return nil, fmt.Errorf("%d bytes, the limit is %d", m.Layers[0].Size, maxBundle)
	case m.Layers[0].Digest.Validate() != nil:
		return nil, errors.New("its layer has no digest")
	}
	layer := v1.Descriptor{MediaType: m.Layers[0].MediaType, Digest: m.Layers[0].Digest, Size: m.Layers[0].Size}
	return fetch(layer.Size, layer.Digest.String(), func() (io.ReadCloser, error) { return repo.Blobs().Fetch(ctx, layer) })
}

// PushBundle adds a bundle with a signature to those that an image has.
func (c *Client) PushBundle(ctx context.Context, ref imageref.Ref, bundle []byte) error {
	err := c.with(ctx, ref.Registry, ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		repo.MaxMetadataBytes, repo.SkipReferrersGC = maxReferrerList, true // many registries delete nothing
		subject, err := repo.Resolve(ctx, ref.Digest)
		if err != nil {
			return err
		}
		return AddBundle(ctx, repo, subject, signature.Predicate, bundle)
	})
	if err != nil {
		return fmt.Errorf("bundle of image %s: %w", ref, err)
	}
	return nil
}

// AddSBOM adds a software bill of materials in SPDX, with the name of its file, about an image.
func AddSBOM(ctx context.Context, to Target, subject v1.Descriptor, name string, document []byte) error {
	return addReferrer(ctx, to, subject, "application/spdx+json", document, map[string]string{v1.AnnotationTitle: name})
}

// AddBundle adds a bundle with a statement of a type about an image.
func AddBundle(ctx context.Context, to Target, subject v1.Descriptor, predicate string, bundle []byte) error {
	return addReferrer(ctx, to, subject, signature.BundleType, bundle, map[string]string{bundleContent: "dsse-envelope", bundlePredicateType: predicate})
}

// addReferrer adds a document about an image.
func addReferrer(ctx context.Context, to Target, subject v1.Descriptor, mediaType string, document []byte, annotations map[string]string) error {
	empty := []byte("{}")
	_, err := pushManifest(ctx, to, v1.Manifest{
		ArtifactType: mediaType, Config: descriptor(v1.MediaTypeEmptyJSON, empty), Layers: []v1.Descriptor{descriptor(mediaType, document)},
		Subject:     &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: annotations,
	}, "", empty, document)
	return err
}
