// Package imageref parses references to OCI artefacts by digest: REGISTRY/NAME@sha256:…
package imageref

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Ref names an artefact: a manifest in a repository of a registry.
type Ref struct {
	Registry   string // host, or host:port
	Repository string
	Digest     string // of the manifest, sha256: and 64 hexadecimal digits
}

// String returns REGISTRY/NAME@sha256:…, or "" for the zero value.
func (r Ref) String() string {
	if r.IsZero() {
		return ""
	}
	return r.Name() + "@" + r.Digest
}

// MarshalText implements encoding.TextMarshaler.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Ref) UnmarshalText(text []byte) (err error) {
	if *r = (Ref{}); len(text) > 0 {
		*r, err = Parse(string(text))
	}
	return err
}

// IsZero reports whether r names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// Name returns REGISTRY/NAME.
func (r Ref) Name() string { return r.Registry + "/" + r.Repository }

// Hex returns the hexadecimal digits of the digest, which name files.
func (r Ref) Hex() string { return strings.TrimPrefix(r.Digest, "sha256:") }

// TagError is the error of a reference without a digest.
type TagError struct {
	Name string // REGISTRY/NAME
	Tag  string // "" for none, which is latest
}

// Split returns the registry and the repository.
func (e *TagError) Split() (registry, repository string) {
	registry, repository, _ = strings.Cut(e.Name, "/")
	return registry, repository
}

// Error implements error.
func (e *TagError) Error() string {
	tag := "without a tag or digest, it means whatever is latest"
	if e.Tag != "" {
		tag = fmt.Sprintf("tag %s can change", e.Tag)
	}
	return fmt.Sprintf("%s: write %s@sha256:…, with the digest of the image's manifest", tag, e.Name)
}

// maxLength bounds a reference, in bytes.
const maxLength = 1024

// IsRegistry reports whether text is a registry as references name it.
func IsRegistry(text string) bool {
	return len(text) <= maxLength && registrySyntax.MatchString(text) && (text == "localhost" || strings.ContainsAny(text, ".:"))
}

// The grammar of the OCI distribution specification.
var (
	registrySyntax   = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?$`)
	repositorySyntax = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagSyntax        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digestSyntax     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Parse parses REGISTRY/NAME@sha256:…, or REGISTRY/NAME:TAG@sha256:…, of which the tag is ignored. The error is a *TagError if
// only the digest is missing.
func Parse(text string) (Ref, error) {
	if len(text) > maxLength {
		return Ref{}, fmt.Errorf("%d bytes, the limit is %d", len(text), maxLength)
	}
	name, digest, hasDigest := strings.Cut(text, "@")
	registry, repository, ok := strings.Cut(name, "/")
	repository, tag, hasTag := strings.Cut(repository, ":")
	switch {
	case hasDigest && strings.Contains(digest, "/"):
		return Ref{}, errors.New("a user before the registry: credentials are those of a docker configuration") // without the password
	case strings.Contains(name, "://"):
		return Ref{}, fmt.Errorf("%q: want REGISTRY/NAME@sha256:… without a scheme", text)
	case !ok || !IsRegistry(registry):
		return Ref{}, fmt.Errorf("%q does not begin with a registry, such as registry.example.com or localhost:5000", text)
	case !repositorySyntax.MatchString(repository):
		return Ref{}, fmt.Errorf("%q: %q is not a name of a repository: lowercase letters, digits, and / . _ - between them", text, repository)
	case hasTag && !tagSyntax.MatchString(tag):
		return Ref{}, fmt.Errorf("%q: %q is not a tag", text, tag)
	case !hasDigest:
		return Ref{}, &TagError{registry + "/" + repository, tag}
	case !digestSyntax.MatchString(digest):
		return Ref{}, fmt.Errorf("%q: the digest is not sha256: followed by 64 lowercase hexadecimal digits", text)
	}
	return Ref{registry, repository, digest}, nil
}

// IsTag reports whether an error says that a reference has no digest, and returns the reference by tag.
func IsTag(err error) (tagged *TagError, ok bool) {
	ok = errors.As(err, &tagged)
	return tagged, ok
}
