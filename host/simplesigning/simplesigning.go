// Package simplesigning signs and verifies the digests of images in the format "simple signing" as cosign uses it: a JSON payload that names
// the digest, and a signature of the payload with an ed25519 or ECDSA P-256 key (sigstore/cosign, specs/SIGNATURE_SPEC.md).
package simplesigning

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
)

// Signature is a signature of a payload.
type Signature struct {
	Payload []byte `json:"payload"`
	Value   []byte `json:"signature"`
}

// signatureType is the type of all payloads.
const signatureType = "cosign container image signature"

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

// PrivateKey signs.
type PrivateKey struct{ key crypto.Signer }

// ParsePrivateKey parses a key in PEM: PKCS #8, or SEC 1 for ECDSA, without a password.
func ParsePrivateKey(text []byte) (*PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no key in PEM")
	}
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("PEM of type %.100q: want PRIVATE KEY without a password, such as that of openssl genpkey -algorithm ed25519", block.Type)
	}
	if err != nil {
		return nil, errors.New("the private key in PEM is damaged") // without parts of it
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T: want ed25519 or ECDSA P-256", key)
	}
	if err := check(signer.Public()); err != nil {
		return nil, err
	}
	return &PrivateKey{signer}, nil
}

// Sign signs that the image with a name, REGISTRY/NAME, has a digest, sha256:….
func (k *PrivateKey) Sign(name, digest string) (Signature, error) {
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = name, digest, signatureType
	text, err := json.Marshal(p)
	if err != nil {
		return Signature{}, err
	}
	message, hash := text, crypto.Hash(0)
	if _, ok := k.key.Public().(*ecdsa.PublicKey); ok {
		sum := sha256.Sum256(text)
		message, hash = sum[:], crypto.SHA256
	}
	value, err := k.key.Sign(rand.Reader, message, hash)
	if err != nil {
		return Signature{}, fmt.Errorf("sign: %w", err)
	}
	return Signature{text, value}, nil
}

// PublicKey verifies.
type PublicKey struct{ key crypto.PublicKey }

// ParsePublicKey parses a key in PEM (PKIX).
func ParsePublicKey(text []byte) (*PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PUBLIC KEY" {
		return nil, errors.New("no public key in PEM: want -----BEGIN PUBLIC KEY-----")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the public key in PEM is damaged")
	}
	if err := check(key); err != nil {
		return nil, err
	}
	return &PublicKey{key}, nil
}

func check(key crypto.PublicKey) error {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return nil
		}
		return fmt.Errorf("an ECDSA key on curve %s: want P-256", k.Curve.Params().Name)
	}
	return fmt.Errorf("a key of type %T: want ed25519 or ECDSA P-256", key)
}

// Verify returns an error unless one of the signatures is of this key and says that the digest, sha256:…, is signed. Whoever copies an image
// to another name copies its signatures, so the name in them is not compared.
func (k *PublicKey) Verify(digest string, signatures []Signature) error {
	if len(signatures) == 0 {
		return errors.New("not signed")
	}
	of := ""
	for i := range signatures {
		s := &signatures[i]
		if !k.verifies(s) {
			continue
		}
		var p payload
		switch err := json.Unmarshal(s.Payload, &p); {
		case err != nil || p.Critical.Type != signatureType:
			of = "something else than an image"
		case p.Critical.Image.Digest != digest:
			of = fmt.Sprintf("another image, %.100q", p.Critical.Image.Digest)
		default:
			return nil
		}
	}
	if of != "" {
		return errors.New("the signature with this key is of " + of)
	}
	return fmt.Errorf("none of %d signatures is of this key", len(signatures))
}

func (k *PublicKey) verifies(s *Signature) bool {
	if key, ok := k.key.(*ecdsa.PublicKey); ok {
		sum := sha256.Sum256(s.Payload)
		return ecdsa.VerifyASN1(key, sum[:], s.Value)
	}
	key, ok := k.key.(ed25519.PublicKey)
	return ok && ed25519.Verify(key, s.Payload, s.Value)
}
