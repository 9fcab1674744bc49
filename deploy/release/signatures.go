package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/registry"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
)

const (
	sums           = "SHA256SUMS"
	provenanceFile = "provenance.intoto.json"
	project        = "https://github.com/sluice-proxy/sluice"
	provenanceType = "https://slsa.dev/provenance/v1"
)

// statement is a statement of in-toto (v1) with provenance of SLSA (v1).
type statement struct {
	Type      string     `json:"_type"`
	Subject   []artefact `json:"subject"`
	Predicate string     `json:"predicateType"`
	Content   struct {
		Definition struct {
			Type         string         `json:"buildType"`
			External     map[string]any `json:"externalParameters"`
			Dependencies []artefact     `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		Run struct {
			Builder map[string]string `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

// artefact is a resource descriptor of in-toto.
type artefact struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance writes what the files were made from, and checksums of all.
func (r *release) provenance(context.Context) error {
	list, err := os.ReadDir(r.dir) // sorted
	if err != nil {
		return err
	}
	st := statement{Type: "https://in-toto.io/Statement/v1", Predicate: provenanceType}
	st.Subject = []artefact{{Name: r.repository, Digest: map[string]string{"sha256": strings.TrimPrefix(r.digest, "sha256:")}}}
	var lines bytes.Buffer
	for _, f := range list {
		if f.IsDir() {
			continue // the image's layout, which is in an archive, too
		}
		sum, err := r.sum(&lines, f.Name())
		if err != nil {
			return err
		}
		st.Subject = append(st.Subject, artefact{Name: f.Name(), Digest: map[string]string{"sha256": sum}})
	}
	d := &st.Content.Definition
	d.Type = project + "/blob/main/deploy/release/README.md"
	d.External = map[string]any{"version": r.version, "repository": r.repository, "platforms": r.platforms, "compiled": r.compiled, "clients": r.clients}
	d.Dependencies = []artefact{
		{URI: "git+" + project + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.commit}},
		{Name: runtime.Version()},
	}
	st.Content.Run.Builder = map[string]string{"id": project + "/tree/main/deploy/release"}
	text, err := json.MarshalIndent(st, "", " ")
	if err != nil {
		return err
	}
	if err := r.write(provenanceFile, append(text, '\n')); err != nil {
		return err
	}
	if _, err := r.sum(&lines, provenanceFile); err != nil {
		return err
	}
	return r.write(sums, lines.Bytes())
}

// sum adds a line of a file to those of SHA256SUMS.
func (r *release) sum(lines *bytes.Buffer, name string) (string, error) {
	body, err := os.ReadFile(r.path(name))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	text := hex.EncodeToString(sum[:])
	fmt.Fprintf(lines, "%s  %s\n", text, name)
	return text, nil
}

// sign attaches to the image in the layout what is said about it: software bills of materials and, with a key, signatures in both
// formats of cosign and the provenance. SHA256SUMS is signed beside it.
func (r *release) sign(ctx context.Context) error {
	layout, err := oci.New(r.path("image"))
	if err != nil {
		return err
	}
	index, err := layout.Resolve(ctx, r.version)
	if err != nil {
		return err
	}
	if err := r.attachSBOMs(ctx, layout, index); err != nil || r.key == "" {
		return err
	}
	text, err := os.ReadFile(r.key)
	if err != nil {
		return err
	}
	key, err := signature.ParsePrivateKey(text)
	if err != nil {
		return fmt.Errorf("-key %s: %w", r.key, err)
	}
	ref := imageref.Ref{Digest: r.digest}
	simple, err := key.Sign(r.repository, r.digest)
	if err != nil {
		return err
	}
	bundle, err := key.SignBundle(r.digest)
	if err != nil {
		return err
	}
	said, err := os.ReadFile(r.path(provenanceFile))
	if err != nil {
		return err
	}
	signed, err := key.SignStatement(said)
	if err != nil {
		return err
	}
	lines, err := os.ReadFile(r.path(sums))
	if err != nil {
		return err
	}
	blob, err := key.SignBlob(lines)
	if err != nil {
		return err
	}
	public, err := key.Public().PEM()
	if err != nil {
		return err
	}
	return errors.Join(registry.AddSignature(ctx, layout, ref, simple), registry.AddBundle(ctx, layout, index, signature.Predicate, bundle),
		registry.AddBundle(ctx, layout, index, provenanceType, signed), r.write(sums+".sig", []byte(blob)), r.write("sluice.pub", []byte(public)))
}

// attachSBOMs attaches the software bills of materials to the image.
func (r *release) attachSBOMs(ctx context.Context, layout *oci.Store, index v1.Descriptor) error {
	list, err := filepath.Glob(r.path("*.spdx.json"))
	if err != nil {
		return err
	}
	for _, file := range list {
		document, err := os.ReadFile(file)
		if err == nil {
			err = registry.AddSBOM(ctx, layout, index, filepath.Base(file), document)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// verifyRelease checks the checksums of a release, makes it again, and compares.
func verifyRelease(ctx context.Context, o options, dir string) error {
	want, err := os.ReadFile(filepath.Join(dir, sums))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(want)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		body, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return err
		}
		if have := sha256.Sum256(body); hex.EncodeToString(have[:]) != sum {
			return fmt.Errorf("%s: %s is not what %s says", dir, name, sums)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, provenanceFile))
	if err != nil {
		return err
	}
	var st statement
	if err := json.Unmarshal(text, &st); err != nil {
		return fmt.Errorf("%s: %w", provenanceFile, err)
	}
	parameter := func(name string) string { s, _ := st.Content.Definition.External[name].(string); return s }
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	o.version, o.repository, o.platforms, o.out, o.key = parameter("version"), parameter("repository"), parameter("platforms"), filepath.Join(temp, "again"), ""
	o.compiled, o.clients, o.again = parameter("compiled"), parameter("clients"), true
	if err := makeRelease(ctx, o); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(o.out, sums))
	if err != nil {
		return err
	}
	if diff := differences(string(want), string(got)); diff != nil {
		return fmt.Errorf("%s: made again from this clone, these files differ: %s", dir, strings.Join(diff, ", "))
	}
	fmt.Printf("%s: %s, made again from this clone, has the same %d files\n", dir, o.version, strings.Count(string(want), "\n"))
	return nil
}

// differences returns the files whose lines in two lists of checksums differ.
func differences(a, b string) (files []string) {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		for line := range strings.Lines(pair[0]) {
			if _, name, _ := strings.Cut(strings.TrimSpace(line), "  "); !strings.Contains(pair[1], line) && !strings.Contains(strings.Join(files, " "), name) {
				files = append(files, name)
			}
		}
	}
	return files
}
