package simplesigning

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
)

func encode(t *testing.T, kind string, der []byte, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// keys returns a key in PEM, private and public.
func keys(t *testing.T, key crypto.Signer) (private, public []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	private = encode(t, "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(key.Public())
	return private, encode(t, "PUBLIC KEY", der, err)
}

func ecdsaKey(t *testing.T, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ed25519Key(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

const name, digest = "registry.example.com/acme/near", "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func TestSignaturesVerify(t *testing.T) {
	other := strings.Replace(digest, "a", "b", 1)
	for kind, key := range map[string]crypto.Signer{"ed25519": ed25519Key(t), "ECDSA": ecdsaKey(t, elliptic.P256())} {
		private, public := keys(t, key)
		signer, err := ParsePrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		verifier, err := ParsePublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		s, err := signer.Sign(name, digest)
		if err != nil {
			t.Fatal(err)
		}
		_, strangers := keys(t, ed25519Key(t))
		stranger, err := ParsePublicKey(strangers)
		if err != nil {
			t.Fatal(err)
		}
		changed := Signature{slices.Clone(s.Payload), s.Value}
		changed.Payload[len(changed.Payload)/2] ^= 1
		forged := Signature{[]byte(strings.Replace(string(s.Payload), digest, other, 1)), s.Value}
		for what, c := range map[string]struct {
			key    *PublicKey
			digest string
			list   []Signature
			want   string
		}{
			"signed":              {verifier, digest, []Signature{s}, ""},
			"beside others":       {verifier, digest, []Signature{{}, changed, s}, ""},
			"not signed":          {verifier, digest, nil, "not signed"},
			"another image":       {verifier, other, []Signature{s}, "the signature with this key is of another image"},
			"another key":         {stranger, digest, []Signature{s}, "none of 1 signatures is of this key"},
			"a changed payload":   {verifier, digest, []Signature{changed}, "none of 1 signatures is of this key"},
			"a forged digest":     {verifier, other, []Signature{forged}, "none of 1 signatures is of this key"},
			"an empty signature":  {verifier, digest, []Signature{{s.Payload, nil}}, "none of 1 signatures is of this key"},
			"nothing but garbage": {verifier, digest, []Signature{{[]byte("x"), []byte("y")}}, "none of 1 signatures is of this key"},
		} {
			if err := c.key.Verify(c.digest, c.list); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %q", kind, what, err, c.want)
			}
		}
		message := []byte(`{"critical":{"type":"atomic container signature"}}`)
		if kind == "ed25519" {
			text := Signature{message, ed25519.Sign(key.(ed25519.PrivateKey), message)}
			if err := verifier.Verify(digest, []Signature{text}); err == nil || !strings.Contains(err.Error(), "something else than an image") {
				t.Errorf("another type: %v", err)
			}
		}
	}
}

func TestOtherKeysAreRefused(t *testing.T) {
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaPrivate, rsaPublic := keys(t, large)
	p384Private, p384Public := keys(t, ecdsaKey(t, elliptic.P384()))
	good, public := keys(t, ed25519Key(t))
	der, err := x509.MarshalECPrivateKey(ecdsaKey(t, elliptic.P256()))
	if _, perr := ParsePrivateKey(encode(t, "EC PRIVATE KEY", der, err)); perr != nil {
		t.Error(perr)
	}
	for what, c := range map[string]struct {
		text []byte
		want string
	}{
		"RSA": {rsaPrivate, "want ed25519 or ECDSA P-256"}, "P-384": {p384Private, "on curve P-384: want P-256"}, "no PEM": {[]byte("x"), "no key in PEM"},
		"cosign's": {encode(t, "ENCRYPTED SIGSTORE PRIVATE KEY", []byte("x"), nil), "without a password"}, "damaged": {encode(t, "PRIVATE KEY", []byte("x"), nil), "damaged"}, "public": {public, "want PRIVATE KEY"},
	} {
		if _, err := ParsePrivateKey(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("private, %s: %v", what, err)
		}
	}
	for what, c := range map[string]struct {
		text []byte
		want string
	}{
		"RSA": {rsaPublic, "want ed25519 or ECDSA P-256"}, "P-384": {p384Public, "on curve P-384: want P-256"}, "no PEM": {nil, "no public key in PEM"}, "private": {good, "no public key in PEM"},
		"damaged": {encode(t, "PUBLIC KEY", []byte("x"), nil), "damaged"},
	} {
		if _, err := ParsePublicKey(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("public, %s: %v", what, err)
		}
	}
}
