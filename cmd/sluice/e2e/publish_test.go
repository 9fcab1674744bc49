package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

var (
	section  = regexp.MustCompile(`(?m)^## `)
	commands = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	byDigest = regexp.MustCompile(`image: \S+@(sha256:[0-9a-f]{64})`)
)

// TestPublishedPolicy runs the commands of examples/publish-policy/README.md: an author's module goes through a registry to a
// running sluice, a new version replaces it, and sluice restarts without the registry. Connections are made all the time, and
// none fails.
func TestPublishedPolicy(t *testing.T) {
	if os.Getenv("SLUICE_BINARY") != "" {
		t.Skip("nothing can be built in a test kernel")
	}
	testenv.RequireProgram(t, "make", "make")
	text, err := os.ReadFile("../../../examples/publish-policy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := section.Split(string(text), -1)
	if len(sections) != 6 {
		t.Fatalf("%d sections", len(sections))
	}
	n := newNode(t)
	n.write("nodes.yaml", `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
`)
	n.write("slice.yaml", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, zone: a}
- {addresses: [10.244.0.2], conditions: {ready: true}, zone: b}
`)
	reg := ociregistry.Start(t, ociregistry.Options{Within: n.lab.Node.Do})
	repo, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	desk := t.TempDir()
	execute := func(number int) {
		t.Helper()
		for _, block := range commands.FindAllStringSubmatch(sections[number], -1) {
			out, err := n.lab.Node.Run(block[1], "env", "-C", desk, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "REPO="+repo, "REGISTRY="+reg.Addr, "bash", "-euo", "pipefail", "-s")
			if err != nil {
				t.Fatalf("## %s: %v\n%s", strings.SplitN(sections[number], "\n", 2)[0], err, out)
			}
		}
	}
	execute(1)
	execute(2)
	execute(3)
	config := filepath.Join(desk, "sluice.yaml")
	inForce := func(what, reason string) {
		t.Helper()
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		image := byDigest.FindStringSubmatch(string(text))
		if image == nil {
			t.Fatalf("no image in\n%s", text)
		}
		module, err := n.lab.Node.Run("", program, "plugin", "digest", filepath.Join(desk, "near/near.wasm"))
		if err != nil {
			t.Fatal(err, module)
		}
		n.until(what, func() bool {
			out, err := n.sluice("explain", "--socket", n.socket(), "-n", "shop", "web")
			return err == nil && strings.Contains(out, strings.TrimSpace(module)) && strings.Contains(out, "near: "+reason) && strings.Contains(out, "80.0 %") && !strings.Contains(out, "problem")
		})
	}
	n.run("--config", config)
	inForce("the first version", "same zone")
	l := n.load(2)
	execute(4)
	inForce("the next version", "in this zone")
	reg.Stop()
	if err := n.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	n.run("--config", config)
	inForce("the next version, without the registry", "in this zone")
	if made := l.stop(1000); !t.Failed() {
		t.Logf("%d connections, none failed", made)
	}
}
