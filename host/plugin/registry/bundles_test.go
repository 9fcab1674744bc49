package registry

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
)

func newKey(t *testing.T) *signature.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := signature.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signedImage is an image in a registry, and a key.
type signedImage struct {
	*testing.T
	client *Client
	ref    imageref.Ref
	key    *signature.PrivateKey
}

func newSignedImage(t *testing.T, o ociregistry.Options) (*ociregistry.Registry, *signedImage) {
	t.Helper()
	r := ociregistry.Start(t, o)
	c, err := NewClient(Options{})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := c.Push(t.Context(), &imageref.TagError{Name: r.Addr + "/acme/spill", Tag: "v1"}, module(1000), WasmConfig)
	if err != nil {
		t.Fatal(err)
	}
	return r, &signedImage{t, c, ref, newKey(t)}
}

// refer pushes a manifest that refers to the image, with a layer.
func (i *signedImage) refer(artifactType, layerType string, layer []byte, annotations map[string]string) {
	i.Helper()
	err := i.client.with(i.Context(), i.ref.Registry, i.ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		subject, err := repo.Resolve(ctx, i.ref.Digest)
		if err != nil {
			return err
		}
		repo.MaxMetadataBytes, repo.SkipReferrersGC = maxReferrerList, true
		_, err = pushManifest(ctx, repo, v1.Manifest{
			ArtifactType: artifactType, Config: descriptor(v1.MediaTypeEmptyJSON, []byte("{}")), Layers: []v1.Descriptor{descriptor(layerType, layer)}, Subject: &subject, Annotations: annotations,
		}, "", []byte("{}"), layer)
		return err
	})
	if err != nil {
		i.Fatal(err)
	}
}

func (i *signedImage) bundle(digest string) []byte {
	i.Helper()
	text, err := i.key.SignBundle(digest)
	if err != nil {
		i.Fatal(err)
	}
	return text
}

// verify returns whether the image is signed.
func (i *signedImage) verify() error {
	set, err := i.client.Signatures(i.Context(), i.ref)
	if err != nil && len(set.Signatures) == 0 {
		return err
	}
	return i.key.Public().Verify(i.ref.Digest, set)
}

// TestBundlesBesideTheImage: in registries that list referrers and that do not, whatever else refers to the image.
func TestBundlesBesideTheImage(t *testing.T) {
	for what, o := range map[string]ociregistry.Options{"listed": {Referrers: true}, "tagged": {}} {
		_, i := newSignedImage(t, o)
		wantError(t, what, i.verify(), "not signed")
		label := func(predicate string) map[string]string { return map[string]string{bundlePredicateType: predicate} }
		slsa := "https://slsa.dev/provenance/v1"
		i.refer("application/spdx+json", "application/spdx+json", []byte("{}"), nil)
		wantError(t, what+", an SBOM", i.verify(), "not signed")
		i.refer(signature.BundleType, signature.BundleType, i.bundle(i.ref.Digest), label(slsa))
		wantError(t, what+", an attestation", i.verify(), "not signed; also found: attestations (1)", "'cosign sign --key'")
		i.refer("application/vnd.dev.sigstore.bundle.v0.9+json", "application/vnd.dev.sigstore.bundle.v0.9+json", []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.9+json"}`), nil)
		i.refer(signature.BundleType, signature.BundleType, []byte(strings.Replace(string(i.bundle(i.ref.Digest)), `{"publicKey":`, `{"certificate":{},"publicKey":`, 1)), label(signature.Predicate))
		i.refer(signature.BundleType, signature.BundleType, []byte(strings.Repeat(" ", maxBundle)+"{}"), nil)
		wantError(t, what+", others", i.verify(), "not signed; also found:", `a bundle of type "application/vnd.dev.sigstore.bundle.v0.9+json"`, "a keyless signature", "131074 bytes, the limit is 131072")
		other := "sha256:" + strings.Repeat("b", 64)
		i.refer(signature.BundleType, signature.BundleType, i.bundle(other), label(signature.Predicate))
		wantError(t, what+", a bundle of another image", i.verify(), `the signature with this key is of another image, "`+other)
		own := i.key
		i.key = newKey(t)
		wantError(t, what+", another key", i.verify(), "none of 1 signatures is of this key")
		i.key = own
		if err := i.client.PushBundle(t.Context(), i.ref, i.bundle(i.ref.Digest)); err != nil {
			t.Fatal(err)
		}
		if err := i.verify(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOtherSignaturesAreNamed: of Notation, and of cosign 2 as a referrer.
func TestOtherSignaturesAreNamed(t *testing.T) {
	_, i := newSignedImage(t, ociregistry.Options{})
	i.refer("application/vnd.cncf.notary.signature", "application/jose+json", []byte("{}"), nil)
	i.refer("application/vnd.dev.cosign.artifact.sig.v1+json", signatureLayer, []byte("{}"), nil)
	wantError(t, "both", i.verify(), `a signature of type "application/vnd.cncf.notary.signature"`, `a signature of type "application/vnd.dev.cosign.artifact.sig.v1+json"`, "'cosign sign --key'")
}

// TestListOfReferrersLies: about digests, sizes, types and numbers, in a page and in many.
func TestListOfReferrersLies(t *testing.T) {
	r, i := newSignedImage(t, ociregistry.Options{Referrers: true})
	if err := i.client.PushBundle(t.Context(), i.ref, i.bundle(i.ref.Digest)); err != nil {
		t.Fatal(err)
	}
	var good v1.Descriptor
	if err := i.client.with(t.Context(), r.Addr, i.ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		desc, err := repo.Resolve(ctx, i.ref.Digest)
		if err != nil {
			return err
		}
		return repo.Referrers(ctx, desc, "", func(page []v1.Descriptor) error { good = page[0]; return nil })
	}); err != nil || good.Digest == "" {
		t.Fatal(err, good)
	}
	no := descriptor(v1.MediaTypeImageManifest, []byte("no such manifest"))
	no.ArtifactType = signature.BundleType
	entries := func(n int, d v1.Descriptor) (out []v1.Descriptor) {
		for k := range n {
			d.Digest = descriptor("", fmt.Append(nil, k)).Digest
			out = append(out, d)
		}
		return out
	}
	labelled := good
	labelled.Annotations = map[string]string{bundlePredicateType: signature.Predicate}
	requests, pages := 0, 0
	through := func(list []v1.Descriptor, next bool) error {
		requests, pages = 0, 0
		other := *i
		other.ref.Registry = front(t, r, func(w http.ResponseWriter, req *http.Request) bool {
			requests++
			if !strings.Contains(req.URL.Path, "/referrers/") {
				return false
			}
			pages++
			if next {
				w.Header().Set("Link", fmt.Sprintf(`<%s?n=%d>; rel="next"`, req.URL.Path, pages))
			}
			w.Header().Set("Content-Type", v1.MediaTypeImageIndex)
			_ = json.NewEncoder(w).Encode(v1.Index{MediaType: v1.MediaTypeImageIndex, Manifests: list})
			return true
		})
		return other.verify()
	}
	lying := good
	lying.Size = 1 << 40
	wrong := good
	wrong.Digest = no.Digest
	for what, c := range map[string]struct {
		list []v1.Descriptor
		next bool
		want []string // "" for a signature
	}{
		"another size":                    {[]v1.Descriptor{lying}, false, nil},
		"among thousands":                 {append(entries(5000, no), labelled), false, nil},
		"among thousands of other things": {append(entries(5000, v1.Descriptor{ArtifactType: "application/spdx+json"}), good), false, nil},
		"what is not there":               {[]v1.Descriptor{wrong}, false, []string{"not signed; also found: bundles that could not be read (1): ", no.Digest.String()}},
		"no digest":                       {[]v1.Descriptor{{ArtifactType: signature.BundleType, Digest: "../../x"}}, false, []string{"more bundles than are read (1)"}},
		"thousands":                       {entries(5000, no), false, []string{"bundles that could not be read (128)", "more bundles than are read (4872)"}},
		"pages without end":               {entries(1, no), true, []string{"more than 16 pages of referrers"}},
		"a page without end":              {entries(50000, no), false, []string{"referrers: ", "unexpected EOF"}},
		"itself":                          {[]v1.Descriptor{{ArtifactType: signature.BundleType, Digest: descriptor("", nil).Digest}}, false, []string{"not signed"}},
	} {
		err := through(c.list, c.next)
		if c.want == nil && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		wantError(t, what, err, c.want...)
		if requests > 3*maxReferrers || pages > maxReferrerPages {
			t.Errorf("%s: %d requests, %d pages", what, requests, pages)
		}
	}
}

// TestReferrersThatCannotBeListed: a signature in the older format is enough; without one it is not said that the image is not
// signed.
func TestReferrersThatCannotBeListed(t *testing.T) {
	r, i := newSignedImage(t, ociregistry.Options{})
	own := i.ref
	for _, status := range []int{http.StatusInternalServerError, http.StatusForbidden, http.StatusBadRequest} {
		i.ref = own
		i.ref.Registry = front(t, r, func(w http.ResponseWriter, req *http.Request) bool {
			lists := strings.Contains(req.URL.Path, "/referrers/")
			if lists {
				w.WriteHeader(status)
			}
			return lists
		})
		s, err := i.key.Sign(own.Name(), own.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusInternalServerError {
			wantError(t, "not signed", i.verify(), "referrers: ", "500")
			if err := i.client.PushSignature(t.Context(), own, s); err != nil {
				t.Fatal(err)
			}
		}
		if err := i.verify(); err != nil {
			t.Errorf("%d: %v", status, err)
		}
		key := i.key
		i.key = newKey(t)
		wantError(t, "another key", i.verify(), "none of 1 signatures is of this key; also found: entries that could not be read (referrers: ")
		i.key = key
	}
}

// endsAtClose ends a context when the body of a blob was read.
type endsAtClose struct {
	remote.Client
	end context.CancelCauseFunc
}

var errTime = errors.New("out of time")

func (c endsAtClose) Do(req *http.Request) (*http.Response, error) {
	resp, err := c.Client.Do(req)
	if err == nil && strings.Contains(req.URL.Path, "/blobs/") {
		resp.Body = closer{resp.Body, c.end}
	}
	return resp, err
}

type closer struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

func (c closer) Close() error {
	c.end(errTime)
	return c.ReadCloser.Close()
}

// TestTimeRunsOutAfterABundle: the bundles that were not read are no reason to say that the image is not signed.
func TestTimeRunsOutAfterABundle(t *testing.T) {
	_, i := newSignedImage(t, ociregistry.Options{})
	for range 2 {
		i.key = newKey(t)
		i.refer(signature.BundleType, signature.BundleType, i.bundle(i.ref.Digest), nil)
	}
	err := i.client.with(t.Context(), i.ref.Registry, i.ref.Repository, func(ctx context.Context, repo *remote.Repository) error {
		ctx, end := context.WithCancelCause(ctx)
		repo.Client = endsAtClose{repo.Client, end}
		return addBundles(ctx, repo, i.ref, new(signature.Set))
	})
	if !errors.Is(err, errTime) {
		t.Errorf("%v, want %v", err, errTime)
	}
}
