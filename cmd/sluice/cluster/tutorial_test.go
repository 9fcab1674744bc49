package cluster

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

var tutorialBlock = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestPolicyTutorial runs the commands of examples/policy-objects/README.md with three nodes, the controller and a registry, and
// compares what they print with what the page says.
func TestPolicyTutorial(t *testing.T) {
	testenv.RequireProgram(t, "make", "make")
	text, err := os.ReadFile("../../../examples/policy-objects/README.md")
	if err != nil {
		t.Fatal(err)
	}
	tools, err := binaries.Find("kubectl")
	testenv.Require(t, err)
	s := newScene(t, "tutorial")
	s.withController()
	reg := ociregistry.Start(t, ociregistry.Options{Within: s.network.Node.Do})
	for _, n := range []string{"n1", "n2", "n3"} {
		if s.nodes[n] == nil {
			s.must(s.addPlace(s.ctx, 3, "b"))
			t.Cleanup(func() {
				s.afterwards("delete", "node", "n3")
				s.nodes["n3"].Lab.Close()
				delete(s.nodes, "n3")
			})
		}
		s.forward(s.nodes[n].Node, reg.Addr)
		r := s.prepare(n, "pluginCacheDir: "+t.TempDir()+"\n")
		r.as = s.podOf(n)
		r.start()
		r.synced()
	}
	repo, err := filepath.Abs("../../..")
	s.must(err)
	desk := t.TempDir()
	run := func(commands string) string {
		t.Helper()
		out, err := s.network.Node.Run(commands, "env", "-C", desk, "PATH="+filepath.Dir(s.sluice)+":"+tools+":"+os.Getenv("PATH"), "REPO="+repo, "REGISTRY="+reg.Addr,
			"KUBECONFIG="+filepath.Join(s.Dir(), "admin.kubeconfig"), "bash", "-euo", "pipefail", "-s")
		if err != nil {
			for _, r := range s.runs {
				t.Log(r.log.String())
			}
			t.Fatalf("%s\n%v\n%s\n%s", commands, err, out, s.kubectl("get", "spl,spol,cspol,snr", "-A", "-o", "yaml"))
		}
		return out
	}
	out, blocks := "", tutorialBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 9 {
		t.Fatalf("%d blocks", len(blocks))
	}
	for _, b := range blocks {
		if b[1] == "sh" {
			out = run(b[2])
			continue
		}
		for line := range strings.Lines(b[2]) {
			want, _, _ := strings.Cut(strings.Join(strings.Fields(line), " "), " …")
			if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("the page says %q, and the commands print\n%s", want, out)
			}
		}
	}
}

// withController installs the kinds and the permissions of the controller, and runs it beside the API server.
func (s *scene) withController() {
	s.Helper()
	dir, err := filepath.Abs("../../../deploy/kustomize")
	s.must(err)
	s.kubectl("apply", "--server-side", "-k", filepath.Join(dir, "crds"))
	s.Cleanup(func() { s.afterwards("delete", "-k", filepath.Join(dir, "crds")) })
	s.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice")
	rbac := filepath.Join(dir, "components/controller/rbac.yaml")
	s.must(func() error { _, err := s.Kubectl(s.ctx, "", "apply", "-f", rbac); return err }())
	s.Cleanup(func() { s.afterwards("delete", "-f", rbac) })
	kubeconfig, err := s.ServiceAccountKubeconfig(s.ctx, accountNamespace, "sluice-controller")
	s.must(err)
	cmd, log := exec.Command(s.sluice, "controller", "--kubeconfig", kubeconfig, "--namespace", accountNamespace, "--identity", "c1"), &testnet.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	p, err := s.network.Node.Start(cmd)
	s.must(err)
	s.Cleanup(func() {
		p.Kill()
		if s.Failed() {
			s.Logf("controller:\n%s", log)
		}
	})
}

// podOf returns a kubeconfig with the token of sluice's Pod on a node, as a kubelet gives it to the Pod.
func (s *scene) podOf(node string) string {
	s.Helper()
	pod, err := s.Client.CoreV1().Pods(accountNamespace).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sluice-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: accountName, Containers: []corev1.Container{{Name: "main", Image: "lab.invalid/main"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		now := int64(0)
		if err := s.Client.CoreV1().Pods(accountNamespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			s.Error(err)
		}
	})
	token, err := s.Client.CoreV1().ServiceAccounts(accountNamespace).CreateToken(s.ctx, accountName, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	s.must(err)
	text, err := os.ReadFile(s.service)
	s.must(err)
	lines := strings.Split(string(text), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "token: ") })
	if i < 0 {
		s.Fatalf("no token in %s", s.service)
	}
	lines[i], _, _ = strings.Cut(lines[i], "token: ")
	lines[i] += "token: " + token.Status.Token
	file := filepath.Join(s.TempDir(), "kubeconfig")
	s.must(os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	return file
}

// forward makes an address on the loopback interface of the API server's host reachable at the same address of a node.
func (s *scene) forward(node *testnet.Host, address string) {
	s.Helper()
	to := netip.MustParseAddrPort(address)
	var l net.Listener
	s.must(node.Do(func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}))
	s.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := s.network.Node.Dial(context.Background(), "tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			copyAll := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				to.Close()
			}
			go copyAll(in, out)
			go copyAll(out, in)
		}
	}()
}
