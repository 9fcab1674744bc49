package testcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
)

func (c *Cluster) apiServerArgs(etcd string) ([]string, error) {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	args := []string{
		"--etcd-servers=" + etcd,
		"--bind-address=0.0.0.0", fmt.Sprint("--secure-port=", c.addr.Port()), "--advertise-address=" + c.addr.Addr().String(),
		"--tls-cert-file=" + file("tls.crt"), "--tls-private-key-file=" + file("tls.key"), "--client-ca-file=" + file("ca.crt"),
		"--authorization-mode=Node,RBAC", "--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + file("tokens.key"), "--service-account-signing-key-file=" + file("tokens.key"),
		"--service-cluster-ip-range=" + join(c.services),
	}
	if len(c.options.Pods) > 0 {
		args = append(args, "--enable-admission-plugins=NodeRestriction", "--kubelet-certificate-authority="+file("ca.crt"),
			"--kubelet-client-certificate="+file("kubelet-client.crt"), "--kubelet-client-key="+file("kubelet-client.key"))
	}
	if c.addr.Addr().IsLoopback() {
		// A loopback address cannot be advertised, because endpoints must not have one.
		args = append(args, "--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1")
	}
	if len(c.options.Audit) > 0 {
		policy, err := json.Marshal(map[string]any{
			"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
			"omitStages": []string{"RequestReceived"},
			"rules": []any{
				map[string]any{"level": "Metadata", "users": c.options.Audit},
				map[string]any{"level": "None"},
			},
		})
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file("audit-policy.json"), policy, 0o644); err != nil {
			return nil, err
		}
		args = append(args, "--audit-policy-file="+file("audit-policy.json"), "--audit-log-path="+file("audit.log"), "--audit-log-maxsize=0")
	}
	return args, nil
}

// StartAPIServer restarts the API server after StopAPIServer, at the same address and with the same state, and waits
// until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if c.apiserver.running() {
		return nil
	}
	if err := c.apiserver.start(); err != nil {
		return err
	}
	return c.waitAPIServer(ctx)
}

// StopAPIServer kills the API server: connections are reset, new ones are refused.
func (c *Cluster) StopAPIServer() { c.apiserver.kill() }

// StopEtcd kills etcd alone: the API server goes on, and answers what it has in memory.
func (c *Cluster) StopEtcd() { c.etcd.kill() }

// StartEtcd restarts etcd after StopEtcd, with the same state, and waits until the API server, unless it is stopped, is ready
// again.
func (c *Cluster) StartEtcd(ctx context.Context) error {
	if err := c.etcd.start(); err != nil || !c.apiserver.running() {
		return err
	}
	return c.waitAPIServer(ctx)
}

// RestartAPIServer calls StopAPIServer and StartAPIServer.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.StopAPIServer()
	return c.StartAPIServer(ctx)
}

// waitAPIServer waits for /readyz on a new connection: an old one to a killed server would have to time out.
func (c *Cluster) waitAPIServer(ctx context.Context) error {
	transport, err := rest.TransportFor(c.Config)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	return c.await(ctx, c.apiserver, "the API server", func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Config.Host+"/readyz", nil)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, errors.New("/readyz: " + resp.Status)
		}
		return true, nil
	})
}
