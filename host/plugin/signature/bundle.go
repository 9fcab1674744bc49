package signature

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Media types and names of sigstore, in-toto and cosign.
const (
	BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// Predicate is the type of a statement that an image is signed. Other statements say something else about it.
	Predicate     = "https://sigstore.dev/cosign/sign/v1"
	statementType = "application/vnd.in-toto+json"
	statementV1   = "https://in-toto.io/Statement/v1"
)

type bundle struct {
	MediaType string          `json:"mediaType"`
	Material  material        `json:"verificationMaterial"`
	Envelope  *envelope       `json:"dsseEnvelope,omitempty"`
	Message   json.RawMessage `json:"messageSignature,omitempty"`
}

type envelope struct {
	Payload    []byte  `json:"payload"`
	Type       string  `json:"payloadType"`
	Signatures []value `json:"signatures"`
}

type material struct {
	PublicKey   *publicKey      `json:"publicKey,omitempty"`
	Certificate json.RawMessage `json:"certificate,omitempty"`
	Chain       json.RawMessage `json:"x509CertificateChain,omitempty"`
}

type publicKey struct {
	Hint string `json:"hint"`
}

type value struct {
	Sig []byte `json:"sig"`
}

// ParseBundle returns the signature in a bundle. The error says what kind of bundle it is if it is none with a key.
func ParseBundle(text []byte) (Signature, error) {
	var b bundle
	switch err := json.Unmarshal(text, &b); {
	case err != nil:
		return Signature{}, errors.New("a damaged bundle")
	case b.MediaType != BundleType && b.MediaType != "application/vnd.dev.sigstore.bundle+json;version=0.3":
		return Signature{}, fmt.Errorf("a bundle of type %.100q", b.MediaType)
	case b.Material.Certificate != nil || b.Material.Chain != nil:
		return Signature{}, errors.New("a keyless signature (a bundle with a certificate)")
	case b.Message != nil:
		return Signature{}, errors.New("a bundle with a message signature, as 'cosign sign-blob' writes it")
	case b.Envelope == nil:
		return Signature{}, errors.New("a bundle without a DSSE envelope")
	case b.Envelope.Type != statementType:
		return Signature{}, fmt.Errorf("a bundle whose envelope has type %.100q", b.Envelope.Type)
	case len(b.Envelope.Signatures) != 1:
		return Signature{}, fmt.Errorf("a bundle with %d signatures, where one is allowed", len(b.Envelope.Signatures))
	}
	return Signature{b.Envelope.Type, b.Envelope.Payload, b.Envelope.Signatures[0].Sig}, nil
}

type statement struct {
	Type      string    `json:"_type"`
	Subject   []subject `json:"subject"`
	Predicate string    `json:"predicateType"`
	Content   struct{}  `json:"predicate"`
}

type subject struct {
	Digest map[string]string `json:"digest"`
}

// SignBundle signs a digest, sha256:…, and returns a bundle.
func (k *PrivateKey) SignBundle(digest string) ([]byte, error) {
	st := statement{Type: statementV1, Subject: []subject{{map[string]string{"sha256": strings.TrimPrefix(digest, "sha256:")}}}, Predicate: Predicate}
	text, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	return k.SignStatement(text)
}

// SignStatement signs a statement of in-toto, in JSON, and returns a bundle.
func (k *PrivateKey) SignStatement(text []byte) ([]byte, error) {
	s := Signature{Type: statementType, Payload: text}
	var err error
	if s.Value, err = k.sign(s.message()); err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(k.key.Public())
	if err != nil {
		return nil, err
	}
	hint := sha256.Sum256(der)
	b := bundle{MediaType: BundleType, Material: material{PublicKey: &publicKey{base64.StdEncoding.EncodeToString(hint[:])}}}
	b.Envelope = &envelope{s.Payload, s.Type, []value{{s.Value}}}
	return json.Marshal(b)
}

// SignBlob signs bytes as cosign sign-blob does, and returns the signature in base64.
func (k *PrivateKey) SignBlob(blob []byte) (string, error) {
	value, err := k.sign(blob)
	return base64.StdEncoding.EncodeToString(value), err
}

// notStatement returns what a statement is about, "" if it is that the image with a digest is signed. Of several subjects, one
// has to be the image.
func notStatement(text []byte, digest string) string {
	var st statement
	switch err := json.Unmarshal(text, &st); {
	case err != nil || st.Type != statementV1:
		return "something else than a statement of in-toto"
	case st.Predicate != Predicate:
		return fmt.Sprintf("a statement of another kind, %.100q", st.Predicate)
	case len(st.Subject) == 0:
		return "no image"
	case !slices.ContainsFunc(st.Subject, func(s subject) bool { return "sha256:"+s.Digest["sha256"] == digest }):
		return fmt.Sprintf("another image, %.100q", "sha256:"+st.Subject[0].Digest["sha256"])
	}
	return ""
}
