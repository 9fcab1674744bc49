package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

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

// Public returns the key that verifies.
func (k *PrivateKey) Public() *PublicKey { return &PublicKey{k.key.Public()} }

func (k *PrivateKey) sign(message []byte) ([]byte, error) {
	hash := crypto.Hash(0)
	if _, ok := k.key.Public().(*ecdsa.PublicKey); ok {
		sum := sha256.Sum256(message)
		message, hash = sum[:], crypto.SHA256
	}
	value, err := k.key.Sign(rand.Reader, message, hash)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return value, nil
}

// PublicKey verifies.
type PublicKey struct{ key crypto.PublicKey }

// PEM returns the key as ParsePublicKey takes it.
func (k *PublicKey) PEM() (string, error) {
	der, err := x509.MarshalPKIXPublicKey(k.key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), nil
}

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

// verifies reports whether a signature of a message is of this key. cosign 3 hashes what it signs with ed25519 (Ed25519ph, RFC
// 8032).
func (k *PublicKey) verifies(message, value []byte) bool {
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], value)
	case ed25519.PublicKey:
		sum := sha512.Sum512(message)
		return ed25519.Verify(key, message, value) || ed25519.VerifyWithOptions(key, sum[:], value, &ed25519.Options{Hash: crypto.SHA512}) == nil
	}
	return false
}
