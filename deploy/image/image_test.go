package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	orasoci "oras.land/oras-go/v2/content/oci"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
)

var at = time.Unix(1_700_000_000, 0).UTC()

func TestImageIsDescribedAndTagged(t *testing.T) {
	dir := t.TempDir()
	o := options{out: filepath.Join(dir, "image"), tar: filepath.Join(dir, "image.tar"), tag: "v1.2.3", version: "v1.2.3", created: at}
	image := o.image(platform{"linux", "arm64"}, []oci.File{{Name: "sluice", Mode: 0o755, Body: []byte("binary")}})
	if c := image.Config; image.Platform.OS != "linux" || image.Platform.Architecture != "arm64" || !slices.Equal(c.Entrypoint, []string{"/sluice"}) || c.User != "0:0" {
		t.Errorf("%+v", image)
	}
	want := "map[org.opencontainers.image.created:2023-11-14T22:13:20Z org.opencontainers.image.description:A Kubernetes Service proxy with WebAssembly policies" +
		" org.opencontainers.image.licenses:Apache-2.0 org.opencontainers.image.source:https://github.com/sluice-proxy/sluice org.opencontainers.image.title:sluice" +
		" org.opencontainers.image.version:v1.2.3]" // no revision: it is not known
	if got := fmt.Sprint(image.Config.Labels); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	sum, err := o.write(t.Context(), []oci.Image{image})
	if err != nil {
		t.Fatal(err)
	}
	store, err := orasoci.NewFromTar(t.Context(), o.tar)
	if err != nil {
		t.Fatal(err)
	}
	if index, err := store.Resolve(t.Context(), o.tag); err != nil || index.Digest != sum {
		t.Errorf("the tag resolves to %s, %v; reported %s", index.Digest, err, sum)
	}
}

func TestInvalidArgumentsAreRejected(t *testing.T) {
	for _, c := range []struct{ args, text string }{
		{"-tag a/b", "-tag"},
		{"-version v1+2", "-tag"},
		{"-time yesterday", "-time"},
		{"-platforms linux", "-platforms"},
		{"-platforms windows/amd64", "-platforms"},
		{"-compiled amd64", "-compiled"},
		{"more", "unexpected"},
	} {
		if _, err := parse(strings.Fields(c.args), io.Discard); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o, err := parse([]string{"-version", "v1"}, io.Discard)
	if err != nil || o.tag != "v1" || !o.created.Equal(at) || len(o.platforms) != 2 || !slices.Equal(o.compiled, o.platforms[:1]) {
		t.Errorf("%+v, %v", o, err)
	}
}
