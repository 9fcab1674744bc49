package testcluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// protobuf is the encoding that Kubernetes' own components use.
const protobuf = "application/vnd.kubernetes.protobuf"

// admin creates the administrator's configuration, client and kubeconfig.
func (c *Cluster) admin() error {
	cert, key, err := c.ca.user("admin", "system:masters")
	if err != nil {
		return err
	}
	c.Config = &rest.Config{
		Host:            "https://" + c.addr.String(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: cert, KeyData: key},
		Dial:            c.dial,
		QPS:             -1,
		ContentConfig:   rest.ContentConfig{ContentType: protobuf, AcceptContentTypes: protobuf + ",application/json"},
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	_, err = c.kubeconfig("admin", &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
	return err
}

// dial connects from the cluster's namespace.
func (c *Cluster) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.options.Host == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return c.options.Host.Dial(ctx, network, to)
}

// UserKubeconfig writes a kubeconfig for a user in groups and returns its path.
func (c *Cluster) UserKubeconfig(user string, groups ...string) (string, error) {
	cert, key, err := c.ca.user(user, groups...)
	if err != nil {
		return "", err
	}
	return c.kubeconfig(user, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of a service account and returns its path.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	token, err := c.Token(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	return c.kubeconfig(namespace+"-"+name, &clientcmdapi.AuthInfo{Token: token})
}

// Token requests a token of a service account.
func (c *Cluster) Token(ctx context.Context, namespace, name string) (string, error) {
	hours := int64(24 * 3600)
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	got, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, req, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ServiceAccount %s/%s: ask for a token: %w", namespace, name, err)
	}
	return got.Status.Token, nil
}

// CAFile returns the path of the CA certificate of the API server.
func (c *Cluster) CAFile() string { return filepath.Join(c.dir, "ca.crt") }

func (c *Cluster) kubeconfig(name string, auth *clientcmdapi.AuthInfo) (string, error) {
	path := filepath.Join(c.dir, strings.NewReplacer(":", "-", "/", "-").Replace(name)+".kubeconfig")
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: c.Config.Host, CertificateAuthorityData: c.ca.pem}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: auth},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: name}},
		CurrentContext: "lab",
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", name, err)
	}
	return path, os.WriteFile(path, data, 0o600)
}
