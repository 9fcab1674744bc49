package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Environment is a control plane without controllers on a host of its own.
type Environment struct {
	Net     *testnet.Lab
	Cluster *testcluster.Cluster
}

// user is sluice's. All agents are one user, like the Pods of a DaemonSet: API priority and fairness classifies by user.
const user = "system:serviceaccount:kube-system:sluice"

// NewEnvironment starts a control plane with permissions for sluice to forward: those that kube-proxy has. sluice's own
// ClusterRole is tested elsewhere.
func NewEnvironment(ctx context.Context) (*Environment, error) {
	e := &Environment{}
	if err := e.start(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Environment) start(ctx context.Context) (err error) {
	if e.Net, err = testnet.New(); err != nil {
		return err
	}
	api, err := e.Net.AddHost("api", netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		return err
	}
	if e.Cluster, err = testcluster.Start(ctx, testcluster.Options{Host: api, NoControllers: true}); err != nil {
		return err
	}
	_, err = e.Cluster.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice-loadgen"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("ClusterRoleBinding sluice-loadgen: create: %w", err)
	}
	return nil
}

// Kubeconfig returns a new kubeconfig file of sluice. It has a certificate of its own: client-go lets clients with the same
// credentials share a connection.
func (e *Environment) Kubeconfig() (string, error) {
	return e.Cluster.UserKubeconfig(user, "system:serviceaccounts", "system:serviceaccounts:kube-system")
}

// Close removes everything.
func (e *Environment) Close() {
	if e.Cluster != nil {
		e.Cluster.Close()
	}
	if e.Net != nil {
		e.Net.Close()
	}
}

// Received returns the bytes received on a host's uplink. Segments that the kernel delivers as one packet count one header.
func Received(h *testnet.Host) (bytes float64, err error) {
	var text []byte
	err = h.Do(func() error {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), "eth0:"); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, errors.Join(err, fmt.Errorf("%s: no link eth0", h.Name))
}
