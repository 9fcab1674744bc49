package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// kubelets replace the scheduler and kubelets for the Pods that controllers create: each gets a node in turn, a network namespace
// with a server, an address, and readiness. A deleted Pod serves until nobody has connected for its grace period, which is
// therefore long enough on a machine of any speed.
type kubelets struct {
	*scene
	grace time.Duration
	wg    sync.WaitGroup

	mu   sync.Mutex // also protects the lab: hosts are created one at a time
	next int
}

// kubelets runs until the test ends.
func (s *scene) kubelets(grace time.Duration) {
	k := &kubelets{scene: s, grace: grace}
	ctx, stop := context.WithCancel(s.ctx)
	seen := map[types.UID]bool{}
	k.wg.Go(func() {
		for ctx.Err() == nil {
			list, err := s.Client.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{})
			if err != nil && ctx.Err() == nil {
				s.Errorf("kubelets: %v", err)
				return
			}
			for _, p := range list.Items {
				if !seen[p.UID] {
					seen[p.UID] = true
					k.wg.Go(func() {
						if err := k.runPod(ctx, p.Name); err != nil && ctx.Err() == nil {
							s.Errorf("kubelets: Pod %s: %v", p.Name, err)
						}
					})
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	s.Cleanup(func() { stop(); k.wg.Wait() })
}

// runPod is a Pod's.
func (k *kubelets) runPod(ctx context.Context, name string) error {
	host, node, err := k.host()
	if err != nil {
		return err
	}
	var servers []*testnet.Server
	for _, a := range host.Addrs {
		server, err := host.Serve("tcp", netip.AddrPortFrom(a, 8080), name)
		if err != nil {
			return err
		}
		defer server.Close()
		servers = append(servers, server)
	}
	pods := k.Client.CoreV1().Pods(k.ns)
	if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := k.SetPodStatus(ctx, k.ns, name, func(s *corev1.PodStatus) {
		s.Phase, s.PodIP = corev1.PodRunning, host.Addrs[0].String()
		for _, a := range host.Addrs {
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: a.String()})
		}
	}); err != nil {
		return err
	}
	if err := k.SetPodReady(ctx, k.ns, name, true); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.DeletionTimestamp != nil {
			break
		}
	}
	for before := int64(-1); before != accepted(servers); {
		before = accepted(servers)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(k.grace):
		}
	}
	return k.RemovePod(ctx, k.ns, name)
}

// accepted returns the number of connections that servers have accepted.
func accepted(servers []*testnet.Server) (n int64) {
	for _, s := range servers {
		n += s.Accepted()
	}
	return n
}

// host creates a network namespace behind one of the nodes, in turn.
func (k *kubelets) host() (*testnet.Host, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	p := k.nodes[fmt.Sprint("n", 1+k.next%2)]
	k.pods++
	host, err := p.AddHost(fmt.Sprint("p", k.pods), p.podAddrs(k.pods)...)
	return host, p.name, err
}

// live returns the sorted names of the Pods that are not terminating.
func (s *scene) live() (out []string) {
	s.Helper()
	list, err := s.Client.CoreV1().Pods(s.ns).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			out = append(out, p.Name)
		}
	}
	slices.Sort(out)
	return out
}
