package testcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of the API server and of its users.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := template("testcluster")
	tmpl.IsCA, tmpl.BasicConstraintsValid = true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{key, cert, encode("CERTIFICATE", der)}, nil
}

// server issues a server certificate for addresses and names.
func (a *authority) server(name string, addrs []netip.Addr, names ...string) (cert, key []byte, err error) {
	tmpl := template(name)
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	tmpl.DNSNames = names
	for _, addr := range addrs {
		tmpl.IPAddresses = append(tmpl.IPAddresses, net.IP(addr.AsSlice()))
	}
	return a.sign(tmpl)
}

// user issues a client certificate for a user.
func (a *authority) user(name string, groups ...string) (cert, key []byte, err error) {
	tmpl := template(name)
	tmpl.Subject.Organization = groups
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(tmpl)
}

func (a *authority) sign(tmpl *x509.Certificate) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", tmpl.Subject.CommonName, err)
	}
	key, err = encodeKey(k)
	return encode("CERTIFICATE", der), key, err
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // rand.Reader never fails
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(365 * 24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, err
	}
	return encode("EC PRIVATE KEY", der), nil
}

// credentials writes the files that the API server needs.
func (c *Cluster) credentials() error {
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), c.addr.Addr()}
	for _, p := range c.services {
		addrs = append(addrs, p.Addr().Next()) // the API server's own Service has the first address
	}
	cert, key, err := c.ca.server("kube-apiserver", addrs,
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	kubeletCert, kubeletKey, err := c.ca.user("kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	caKey, err := encodeKey(c.ca.key)
	if err != nil {
		return err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	tokens, err := encodeKey(signer)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		"ca.crt": c.ca.pem, "ca.key": caKey, "tls.crt": cert, "tls.key": key, "tokens.key": tokens,
		"kubelet-client.crt": kubeletCert, "kubelet-client.key": kubeletKey,
	} {
		if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// ServerCertificate issues a certificate for a server that the API server connects to: a kubelet.
func (c *Cluster) ServerCertificate(name string, addrs ...netip.Addr) (cert, key []byte, err error) {
	return c.ca.server(name, addrs, name)
}
