// Command image builds sluice's container image without a container runtime: an OCI image layout with one manifest per
// platform. The image contains the static binary, the bundled plugins, their machine code and the licenses.
//
// The same sources, Go version and arguments produce the same digest on every machine.
package main

import (
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	var sum digest.Digest
	if err == nil {
		sum, err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(sum)
}

// options are the command line options.
type options struct {
	out       string // folder for the layout
	tar       string // "": no archive
	sboms     string // folder for software bills of materials; "": none
	tag       string
	version   string
	revision  string
	created   time.Time // zero: unknown
	platforms []platform
	compiled  []platform // for which the image has compiled plugins
}

// platform is a target platform; Go and OCI use the same names.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// tagForm matches tags of the OCI distribution specification.
var tagForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	var created, platforms, compiled string
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.out, "o", "bin/image", "directory for the OCI image layout; an existing layout is replaced")
	f.StringVar(&o.tar, "tar", "", "also write the layout as a tar file, for ctr images import and podman load")
	f.StringVar(&o.sboms, "sbom", "", "existing directory for a software bill of materials (SPDX) of each platform's binary")
	f.StringVar(&o.version, "version", "unknown", "version of sluice")
	f.StringVar(&o.tag, "tag", "", "tag of the image (default: the version)")
	f.StringVar(&o.revision, "revision", "", "commit that the image is built from")
	f.StringVar(&created, "time", os.Getenv("SOURCE_DATE_EPOCH"), "timestamp of everything in the image in seconds since 1970 (default: $SOURCE_DATE_EPOCH)")
	f.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "comma-separated target platforms")
	f.StringVar(&compiled, "compiled", "linux/amd64", "comma-separated target platforms for which the plugins are compiled; for another architecture than this machine's, QEMU runs the compiler")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.tag == "" {
		o.tag = o.version
	}
	if !tagForm.MatchString(o.tag) {
		return o, fmt.Errorf("-tag %q: must match %s", o.tag, tagForm)
	}
	if created != "" {
		s, err := strconv.ParseInt(created, 10, 64)
		if err != nil || s < 0 {
			return o, fmt.Errorf("-time %q: not a number of seconds since 1970", created)
		}
		o.created = time.Unix(s, 0).UTC()
	}
	var err error
	if o.platforms, err = parsePlatforms("platforms", platforms); err == nil && compiled != "" {
		o.compiled, err = parsePlatforms("compiled", compiled)
	}
	return o, err
}

func parsePlatforms(name, list string) (out []platform, err error) {
	for text := range strings.SplitSeq(list, ",") {
		system, arch, ok := strings.Cut(text, "/")
		if !ok || system != "linux" || arch == "" {
			return nil, fmt.Errorf("-%s %q: must be linux/ARCHITECTURE, such as linux/amd64", name, text)
		}
		out = append(out, platform{system, arch})
	}
	return out, nil
}

// run builds the image and returns the digest of its index.
func run(ctx context.Context, o options) (digest.Digest, error) {
	b, err := newBuilder(ctx, o.version, o.created)
	if err != nil {
		return "", err
	}
	defer b.close()
	plugins, err := b.plugins(ctx)
	if err != nil {
		return "", err
	}
	var images []oci.Image
	for _, p := range o.platforms {
		var compiled []oci.File
		pairs := ""
		if slices.Contains(o.compiled, p) {
			if compiled, pairs, err = b.compiled(ctx, p); err != nil {
				return "", err
			}
		}
		files, err := b.sluice(ctx, p, pairs)
		if err != nil {
			return "", err
		}
		images = append(images, o.image(p, slices.Concat(files, plugins, compiled)))
		if o.sboms != "" {
			if err := os.WriteFile(filepath.Join(o.sboms, fmt.Sprintf("sluice_%s_%s.spdx.json", p.os, p.arch)), b.sboms[p], 0o644); err != nil {
				return "", err
			}
		}
	}
	return o.write(ctx, images)
}

// image describes the image of a platform.
func (o options) image(p platform, files []oci.File) oci.Image {
	return oci.Image{
		Platform: v1.Platform{OS: p.os, Architecture: p.arch},
		// uid 0 with the capabilities of the Pod's security context; deploy/README.md explains why.
		Config: v1.ImageConfig{User: "0:0", Entrypoint: []string{"/sluice"}, WorkingDir: "/", Labels: o.about()},
		Files:  files,
	}
}

// write writes the layout, and the archive if there is to be one, and returns the digest of the index.
func (o options) write(ctx context.Context, images []oci.Image) (digest.Digest, error) {
	index := oci.Index{Names: []map[string]string{{v1.AnnotationRefName: o.tag}}, Annotations: o.about(), Images: images}
	layout := oci.Layout{Indexes: []oci.Index{index}, Created: o.created, CreatedBy: module + "/deploy/image", Level: gzip.DefaultCompression}
	sums, err := layout.Write(ctx, o.out)
	if err != nil {
		return "", err
	}
	if o.tar == "" {
		return sums[0], nil
	}
	return sums[0], oci.Archive(o.out, o.tar, o.created)
}

// about returns the descriptive annotations of the OCI image specification.
func (o options) about() map[string]string {
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
