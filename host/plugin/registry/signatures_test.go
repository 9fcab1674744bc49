package registry

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
)

// TestSignaturesAreBesideTheImage: as many as there may be, in a real registry and in the cache.
func TestSignaturesAreBesideTheImage(t *testing.T) {
	r := ociregistry.Start(t, ociregistry.Options{})
	c, err := NewClient(Options{})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := c.Push(t.Context(), &imageref.TagError{Name: r.Addr + "/acme/spill", Tag: "v1"}, module(1000), WasmConfig)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Signatures(t.Context(), ref); err != nil || len(got.Signatures) != 0 {
		t.Errorf("not signed: %v, %v", got, err)
	}
	var want []signature.Signature
	for i := range maxSignatures {
		want = append(want, signature.Signature{Payload: fmt.Appendf(nil, "payload %d", i), Value: fmt.Appendf(nil, "value %d", i)})
		if err := c.PushSignature(t.Context(), ref, want[i]); err != nil {
			t.Fatal(err)
		}
	}
	same := func(a, b signature.Signature) bool {
		return bytes.Equal(a.Payload, b.Payload) && bytes.Equal(a.Value, b.Value)
	}
	got, err := c.Signatures(t.Context(), ref)
	if err != nil || !slices.EqualFunc(got.Signatures, want, same) {
		t.Errorf("%d signatures, %v; want %d", len(got.Signatures), err, len(want))
	}
	wantError(t, "one more", c.PushSignature(t.Context(), ref, want[0]), "it has 32 signatures, the limit is 32")
	for _, dir := range []string{"", t.TempDir() + "/cache"} {
		cache, err := OpenCache(dir, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if cache.Signatures(ref) != nil {
			t.Error("there are some already")
		}
		if err := cache.PutSignatures(ref, got.Signatures); err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(cache.Signatures(ref), want, same) {
			t.Error("the cache has others")
		}
	}
	r.Stop()
	_, err = c.Signatures(t.Context(), ref)
	wantError(t, "outage", err, "signatures of image "+ref.String(), "connection refused")
}
