// Package signature signs and verifies the digests of images with ed25519 and ECDSA P-256 keys, in both formats of cosign: simple
// signing, a JSON payload that names the digest (sigstore/cosign, specs/SIGNATURE_SPEC.md), and bundles, an in-toto statement in
// a DSSE envelope (specs/BUNDLE_SPEC.md).
package signature

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Signature is a signature of a payload.
type Signature struct {
	Type    string `json:"type,omitempty"` // of the payload, in a DSSE envelope; "": simple signing
	Payload []byte `json:"payload"`
	Value   []byte `json:"signature"`
}

// message returns what is signed.
func (s *Signature) message() []byte {
	if s.Type == "" {
		return s.Payload
	}
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(s.Type), s.Type, len(s.Payload), s.Payload)
}

// maxUnread bounds Set.Unread.
const maxUnread = 8

// Set is what there is beside an image.
type Set struct {
	Signatures []Signature
	Unread     []string // what else there is, and is not read
}

// AddUnread adds to Unread, unless it is there, or too much is.
func (s *Set) AddUnread(what string) {
	if len(s.Unread) < maxUnread && !slices.Contains(s.Unread, what) {
		s.Unread = append(s.Unread, what)
	}
}

// Verify returns an error unless one of the signatures is of this key and says that the digest, sha256:…, is signed. Whoever
// copies an image to another name copies its signatures, so names in them are not compared.
func (k *PublicKey) Verify(digest string, all Set) error {
	err := k.verify(digest, all.Signatures)
	if err != nil && len(all.Unread) > 0 {
		return fmt.Errorf("%w; also found: %s; want a signature of 'cosign sign --key' or 'sluice plugin push --sign'", err, strings.Join(all.Unread, ", "))
	}
	return err
}

func (k *PublicKey) verify(digest string, signatures []Signature) error {
	if len(signatures) == 0 {
		return errors.New("not signed")
	}
	of := ""
	for i := range signatures {
		if s := &signatures[i]; !k.verifies(s.message(), s.Value) {
			continue
		} else if of = s.isNot(digest); of == "" {
			return nil
		}
	}
	if of != "" {
		return errors.New("the signature with this key is of " + of)
	}
	return fmt.Errorf("none of %d signatures is of this key", len(signatures))
}

// isNot returns what is signed, "" if it is the image with a digest.
func (s *Signature) isNot(digest string) string {
	switch s.Type {
	case "":
		return notSimple(s.Payload, digest)
	case statementType:
		return notStatement(s.Payload, digest)
	}
	return fmt.Sprintf("an envelope of type %.100q", s.Type)
}

// simpleType is the type of all payloads of simple signing.
const simpleType = "cosign container image signature"

type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// Sign signs that the image with a name, REGISTRY/NAME, has a digest, sha256:…, as simple signing.
func (k *PrivateKey) Sign(name, digest string) (Signature, error) {
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = name, digest, simpleType
	text, err := json.Marshal(p)
	if err != nil {
		return Signature{}, err
	}
	value, err := k.sign(text)
	return Signature{Payload: text, Value: value}, err
}

func notSimple(text []byte, digest string) string {
	var p payload
	switch err := json.Unmarshal(text, &p); {
	case err != nil || p.Critical.Type != simpleType:
		return "something else than an image"
	case p.Critical.Image.Digest != digest:
		return fmt.Sprintf("another image, %.100q", p.Critical.Image.Digest)
	}
	return ""
}
