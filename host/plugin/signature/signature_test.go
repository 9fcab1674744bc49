package signature

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

// signer returns a key, and what verifies with it.
func signer(t *testing.T, key crypto.Signer) (*PrivateKey, *PublicKey) {
	t.Helper()
	private, public := keys(t, key)
	k, err := ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParsePublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return k, v
}

// signed returns the signatures of a key in both formats.
func signed(t *testing.T, k *PrivateKey, digest string) map[string]Signature {
	t.Helper()
	simple, err := k.Sign(name, digest)
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.SignBundle(digest)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := ParseBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]Signature{"simple signing": simple, "a bundle": bundle}
}

const other = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

func TestSignaturesVerify(t *testing.T) {
	_, stranger := signer(t, ed25519Key(t))
	for kind, key := range map[string]crypto.Signer{"ed25519": ed25519Key(t), "ECDSA": ecdsaKey(t, elliptic.P256())} {
		signing, verifier := signer(t, key)
		formats := signed(t, signing, digest)
		for format, s := range formats {
			changed := s
			changed.Payload = slices.Clone(s.Payload)
			changed.Payload[len(changed.Payload)/2] ^= 1
			with := func(f func(*Signature)) []Signature {
				c := s
				f(&c)
				return []Signature{c}
			}
			forged := strings.ReplaceAll(string(s.Payload), digest[7:], other[7:])
			for what, c := range map[string]struct {
				key    *PublicKey
				digest string
				list   []Signature
				want   string
			}{
				"signed":              {verifier, digest, []Signature{s}, ""},
				"beside others":       {verifier, digest, []Signature{{}, changed, s, {Type: statementType}}, ""},
				"not signed":          {verifier, digest, nil, "not signed"},
				"another image":       {verifier, other, []Signature{s}, "the signature with this key is of another image, \"" + digest},
				"another key":         {stranger, digest, []Signature{s}, "none of 1 signatures is of this key"},
				"a changed payload":   {verifier, digest, []Signature{changed}, "none of 1 signatures is of this key"},
				"a forged digest":     {verifier, other, with(func(s *Signature) { s.Payload = []byte(forged) }), "none of 1 signatures is of this key"},
				"an empty signature":  {verifier, digest, with(func(s *Signature) { s.Value = nil }), "none of 1 signatures is of this key"},
				"another type":        {verifier, digest, with(func(s *Signature) { s.Type = "text/plain" }), "none of 1 signatures is of this key"},
				"a long type":         {verifier, digest, with(func(s *Signature) { s.Type += " 0 " }), "none of 1 signatures is of this key"},
				"cut":                 {verifier, digest, with(func(s *Signature) { s.Value = s.Value[:len(s.Value)-1] }), "none of 1 signatures is of this key"},
				"nothing but garbage": {verifier, digest, []Signature{{Payload: []byte("x"), Value: []byte("y")}}, "none of 1 signatures is of this key"},
			} {
				if err := c.key.Verify(c.digest, Set{Signatures: c.list}); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
					t.Errorf("%s, %s, %s: %v, want %q", kind, format, what, err, c.want)
				}
			}
		}
	}
}

// TestWhatIsSignedIsAnImage: the key also signs other things, in either format.
func TestWhatIsSignedIsAnImage(t *testing.T) {
	key, verifier := signer(t, ecdsaKey(t, elliptic.P256()))
	d := digest[7:]
	subject := `[{"digest":{"sha256":"` + d + `"}}]`
	say := func(kind, predicate, subject string) string {
		return `{"_type":"` + kind + `","subject":` + subject + `,"predicateType":"` + predicate + `","predicate":{"a":[1]}}`
	}
	simple, bundle := signed(t, key, digest)["simple signing"], signed(t, key, digest)["a bundle"]
	for what, c := range map[string]struct {
		s    Signature
		want string
	}{
		"one of two subjects":           {Signature{Type: statementType, Payload: []byte(say(statementV1, Predicate, `[{"digest":{"sha256":"00"}},{"name":"x","digest":{"sha512":"1","sha256":"`+d+`"}}]`))}, ""},
		"another subject":               {Signature{Type: statementType, Payload: []byte(say(statementV1, Predicate, `[{"digest":{"sha256":"00"}}]`))}, `another image, "sha256:00"`},
		"another algorithm":             {Signature{Type: statementType, Payload: []byte(say(statementV1, Predicate, `[{"digest":{"sha512":"`+d+`"}}]`))}, "another image"},
		"no subject":                    {Signature{Type: statementType, Payload: []byte(say(statementV1, Predicate, `[]`))}, "no image"},
		"an attestation":                {Signature{Type: statementType, Payload: []byte(say(statementV1, "https://slsa.dev/provenance/v1", subject))}, "a statement of another kind, \"https://slsa.dev"},
		"another version":               {Signature{Type: statementType, Payload: []byte(say("https://in-toto.io/Statement/v2", Predicate, subject))}, "something else than a statement"},
		"no JSON":                       {Signature{Type: statementType, Payload: []byte("x")}, "something else than a statement"},
		"simple signing in an envelope": {Signature{Type: statementType, Payload: simple.Payload}, "something else than a statement"},
		"an envelope of another type":   {Signature{Type: "application/vnd.dev.cosign.simplesigning.v1+json", Payload: simple.Payload}, "an envelope of type"},
		"a statement without envelope":  {Signature{Payload: bundle.Payload}, "something else than an image"},
		"an encoded envelope":           {Signature{Payload: bundle.message()}, "something else than an image"},
		"another simple type":           {Signature{Payload: []byte(`{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":"` + digest + `"}}}`)}, "something else than an image"},
	} {
		var err error
		if c.s.Value, err = key.sign(c.s.message()); err != nil {
			t.Fatal(err)
		}
		err = verifier.Verify(digest, Set{Signatures: []Signature{c.s}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), "the signature with this key is of "+c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestBundlesThatAreNotRead: the message says what they are, and what to sign with.
func TestBundlesThatAreNotRead(t *testing.T) {
	key, verifier := signer(t, ed25519Key(t))
	good, err := key.SignBundle(digest)
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, with string) string {
		t.Helper()
		if !strings.Contains(string(good), old) {
			t.Fatalf("no %q in %s", old, good)
		}
		return strings.Replace(string(good), old, with, 1)
	}
	for what, c := range map[string]struct{ text, want string }{
		"keyless":             {replace(`{"publicKey":`, `{"certificate":{"rawBytes":"AAAA"},"publicKey":`), "a keyless signature"},
		"keyless, v0.1":       {replace(`{"publicKey":`, `{"x509CertificateChain":{"certificates":[]},"publicKey":`), "a keyless signature"},
		"another version":     {replace("bundle.v0.3+json", "bundle.v0.9+json"), `a bundle of type "application/vnd.dev.sigstore.bundle.v0.9+json"`},
		"an older version":    {replace("bundle.v0.3+json", "bundle+json;version=0.1"), "a bundle of type"},
		"a message signature": {replace(`"dsseEnvelope":`, `"messageSignature":{"signature":"AAAA"},"dsseEnvelope":`), "'cosign sign-blob'"},
		"no envelope":         {replace("dsseEnvelope", "x"), "without a DSSE envelope"},
		"another type":        {replace(statementType, "text/plain"), `envelope has type "text/plain"`},
		"two signatures":      {replace(`"signatures":[`, `"signatures":[{"sig":"AAAA"},`), "2 signatures, where one is allowed"},
		"no signature":        {replace(`"signatures":`, `"x":`), "0 signatures"},
		"cut":                 {string(good[:len(good)-1]), "damaged"},
		"no base64":           {replace(`"sig":"`, `"sig":"!`), "damaged"},
		"a list":              {"[]", "damaged"},
		"null":                {"null", "a bundle of type"},
	} {
		_, err := ParseBundle([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
			continue
		}
		set := Set{}
		set.AddUnread(err.Error())
		if err := verifier.Verify(digest, set); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "'cosign sign --key'") {
			t.Errorf("%s: %v", what, err)
		}
	}
	set := Set{}
	for i := range 100 {
		set.AddUnread(strings.Repeat("x", i%20))
	}
	if len(set.Unread) != maxUnread {
		t.Errorf("%d are kept", len(set.Unread))
	}
	if s, err := ParseBundle([]byte(replace("bundle.v0.3+json", "bundle+json;version=0.3"))); err != nil || verifier.Verify(digest, Set{Signatures: []Signature{s}}) != nil {
		t.Errorf("the other name of version 0.3: %v", err)
	}
}

// FuzzParseBundle: whatever a registry sends, only a signature of the key counts.
func FuzzParseBundle(f *testing.F) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	key := &PrivateKey{private}
	good, err := key.SignBundle(digest)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"mediaType":"` + BundleType + `","dsseEnvelope":{"payloadType":"` + statementType + `","signatures":[{}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseBundle(text)
		if err == nil && key.Public().Verify(other, Set{Signatures: []Signature{s}}) == nil {
			t.Error("something else is signed")
		}
	})
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
