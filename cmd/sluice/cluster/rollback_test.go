package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// kubeProxy starts kube-proxy in mode nftables on the node, beside sluice, and removes what it leaves when the test ends.
func (r *run) kubeProxy() (*testnet.Program, *testnet.Log) {
	r.Helper()
	bin, err := binaries.Find(binaries.KubeProxy)
	r.must(err)
	user, err := r.UserKubeconfig("system:kube-proxy")
	r.must(err)
	config := filepath.Join(r.dir, "kube-proxy.yaml")
	r.must(os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s}
clusterCIDR: %s,%s
hostnameOverride: %s
mode: nftables
conntrack: {maxPerCore: 0, min: 0}
`, user, pods4, pods6, r.place.name), 0o644))
	p, log := r.startLogged(filepath.Join(bin, binaries.KubeProxy), "--config="+config)
	r.Cleanup(func() {
		p.Kill()
		if out, err := r.command("cleanup", "--kube-proxy"); err != nil {
			r.Errorf("%v\n%s", err, out)
		}
	})
	return p, log
}

// tables reports whether the node has nf_tables tables of a name.
func (r *run) tables(name string) bool {
	r.Helper()
	return strings.Contains(r.nft("list tables"), " "+name+"\n")
}

// TestStoppedSluiceHandsOverToKubeProxy: sluice's tables come before those of kube-proxy, and so have to be kept up to date until
// that has programmed everything, and to go then. No connection may fail, and none may be answered by an endpoint that is no
// longer one.
func TestStoppedSluiceHandsOverToKubeProxy(t *testing.T) {
	for name, situation := range map[string]func(*run) (resume func()){
		"which has been started beside it": func(r *run) func() {
			proxy, log := r.kubeProxy()
			r.eventually("kube-proxy's table", func() error {
				if !r.tables("kube-proxy") {
					return errors.New(log.String())
				}
				return nil
			})
			r.must(syscall.Kill(proxy.PID(), syscall.SIGSTOP)) // it cannot answer
			return func() { r.must(syscall.Kill(proxy.PID(), syscall.SIGCONT)) }
		},
		"which the Node's label promises": func(r *run) func() {
			// The signal comes before the watch tells of the label, as on a busy node.
			r.must(syscall.Kill(r.process.PID(), syscall.SIGSTOP))
			r.kubectl("label", "node", "n1", "sluice.dev/proxy=kube-proxy")
			r.Cleanup(func() { r.afterwards("label", "node", "n1", "sluice.dev/proxy-") })
			return func() { r.kubeProxy() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, fmt.Sprint("rollback-", len(name)))
			n1 := s.nodes["n1"]
			s.apply(web)
			a := s.pod("a", "web", n1, "")
			s.pod("b", "web", n1, "")
			r := s.run("n1", "")
			vip := s.vip("web", false)
			s.expect(n1.client, vip, "a b")
			stop := s.load(n1.client, vip)
			open := s.converse(n1.client, vip)

			resume := situation(r)
			s.expect(n1.client, vip, "a b")
			s.must(syscall.Kill(r.process.PID(), syscall.SIGTERM))
			s.must(syscall.Kill(r.process.PID(), syscall.SIGCONT))
			r.logged("kube-proxy follows")
			s.pod("c", "web", n1, "")
			a.remove()
			s.expect(n1.client, vip, "b c")
			resume()
			if err := r.process.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, r.log)
			}
			if !strings.Contains(r.log.String(), "kube-proxy forwards") || r.tables("sluice") {
				t.Errorf("tables: %s\n%s", r.nft("list tables"), r.log)
			}
			s.expect(n1.client, vip, "b c")
			s.pod("d", "web", n1, "")
			s.expect(n1.client, vip, "b c d") // by kube-proxy
			stop()
			open.expectAlive()
		})
	}
}

// TestCleanupWaitsForKubeProxy: the tables of a sluice that was killed forward until kube-proxy has programmed everything.
func TestCleanupWaitsForKubeProxy(t *testing.T) {
	s := newScene(t, "rollback-killed")
	n1 := s.nodes["n1"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a")
	r.end(syscall.SIGKILL)
	stop := s.load(n1.client, vip)
	r.kubeProxy()
	if out, err := r.command("cleanup", "--wait-for-kube-proxy=2m"); err != nil || !strings.Contains(out, "removed nftables") || strings.Contains(out, "without waiting") {
		t.Errorf("%v\n%s", err, out)
	}
	s.expect(n1.client, vip, "a")
	stop()
	if out, err := r.command("cleanup", "--wait-for-kube-proxy=2m"); err != nil || out != "nothing to remove\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
