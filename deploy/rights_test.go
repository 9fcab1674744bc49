package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInitContainerSetsConntrack shows that the init container needs CAP_NET_ADMIN and a writable /proc/sys, which container
// runtimes provide only to privileged containers.
func TestInitContainerSetsConntrack(t *testing.T) {
	init := daemonSet(t).Spec.Template.Spec.InitContainers[0]
	for name, c := range map[string]struct {
		change func(*container)
		code   int
		log    string
	}{
		"as in the manifest":                         {func(*container) {}, 0, "nf_conntrack_tcp_timeout_established"},
		"CAP_NET_ADMIN and writable /proc/sys":       {func(c *container) { c.Privileged, c.WritableProc = false, true }, 0, "nf_conntrack_tcp_timeout_established"},
		"CAP_NET_ADMIN in an unprivileged container": {func(c *container) { c.Privileged = false }, 1, "mounted read-only, as in an unprivileged container"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, withoutTableSize(read(t, "kustomize/base/sluice.yaml")))
			run := n.container(init)
			if !run.Privileged || !run.ReadOnly {
				t.Fatalf("differs from the manifest: %+v", run)
			}
			run.Capabilities = []int{unix.CAP_NET_ADMIN}
			c.change(&run)
			out, err := n.run(run)
			if exitCode(err) != c.code || !strings.Contains(out, c.log) {
				t.Fatalf("%v\n%s", err, out)
			}
			if c.code != 0 {
				return
			}
			for name, want := range map[string]string{"tcp_timeout_established": "86400", "tcp_timeout_close_wait": "3600"} {
				if is := n.sysctl("net/netfilter/nf_conntrack_" + name); is != want {
					t.Errorf("%s is %s, want %s", name, is, want)
				}
			}
			if out, err := n.run(run); err != nil || out != "" {
				t.Errorf("second run: %v\n%s", err, out)
			}
		})
	}
}

// TestImageForwardsWithManifestRights covers init, forwarding, probes, explain, a kill, the Pod of the next version and cleanup.
func TestImageForwardsWithManifestRights(t *testing.T) {
	pod := daemonSet(t).Spec.Template.Spec
	main := pod.Containers[0]
	n := newNode(t, withoutTableSize(read(t, "kustomize/overlays/policies/sluice.yaml")))
	if out, err := n.run(n.container(pod.InitContainers[0])); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	if out, err := n.run(n.container(main, "--help")); err != nil { // fails on unknown arguments
		t.Fatalf("%v\n%s", err, out)
	}

	run := n.withManifests(n.container(main))
	p := n.start(run)
	n.waitForLog(p, "synced all services")
	for field, want := range map[string]string{
		"CapEff": "0000000000001000", "CapPrm": "0000000000001000", "CapBnd": "0000000000001000", "CapInh": "0000000000000000",
		"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
	} {
		if got := status(p.PID(), field); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
	root := fmt.Sprintf("/proc/%d/root", p.PID())
	for _, path := range []string{"/x", "/plugins/x", "/etc/sluice/x", "/proc/sys/net/ipv4/ip_forward"} {
		if err := os.WriteFile(root+path, []byte("1"), 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s is writable: %v", path, err)
		}
	}
	n.answers("running")
	n.waitForPlugins(p)
	n.answers("with its policy")
	checkPluginProcesses(t, p.PID())
	for name, probe := range map[string]func() (int, error){
		"liveness":  func() (int, error) { return n.get(main, main.LivenessProbe) },
		"readiness": func() (int, error) { return n.get(main, main.ReadinessProbe) },
	} {
		if code, err := probe(); code != 200 || err != nil {
			t.Errorf("%s: %d, %v", name, code, err)
		}
	}
	explain := n.container(main)
	explain.Args = []string{"/sluice", "explain", "-n", "shop", "web"}
	if out, err := n.run(explain); err != nil || !strings.Contains(out, "locality") || !strings.Contains(out, "10.244.0.1:8080") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	check := n.container(main)
	check.Args = []string{"/sluice", "check", "--config=/etc/sluice/sluice.yaml"}
	if out, err := n.run(check); err != nil || strings.Contains(out, "missing") && !strings.Contains(out, "CAP_SYS_RESOURCE") {
		t.Errorf("check: %v\n%s", err, out)
	}
	if bad := complaints(t, p.String()); len(bad) > 0 {
		t.Errorf("warnings with these rights:\n%s", strings.Join(bad, ""))
	}

	// Nothing was compiled: the image has the code of its plugins.
	compiled, err := filepath.Glob(filepath.Join(n.state, "plugins", "*", "MANIFEST"))
	if err != nil || len(compiled) > 0 {
		t.Errorf("compiled plugins on the host: %v, %v", compiled, err)
	}

	// The container is killed and its Pod starts another.
	p.Kill()
	n.answers("killed")
	p = n.start(run)
	n.waitForLog(p, `"netlink_messages":0`)
	n.waitForPlugins(p)
	n.answers("another container")
	t.Logf("resident: %s, with the image's compiled plugins", status(p.PID(), "VmRSS"))

	// The Pod is deleted.
	if err := p.End(syscall.SIGTERM, timeout); err != nil {
		t.Errorf("terminate: %v\n%s", err, p)
	}
	if bad := complaints(t, p.String()); len(bad) > 0 {
		t.Errorf("warnings in the second container:\n%s", strings.Join(bad, ""))
	}
	if _, err := os.Stat(filepath.Join(n.state, "checkpoint.json")); err != nil {
		t.Error(err)
	}
	n.answers("stopped")
	cleanup := n.container(cleanupJob(t).Spec.Template.Spec.Containers[0])
	if out, err := n.run(cleanup); err != nil || !strings.Contains(out, "removed") {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	if _, err := n.client.Ask("tcp", vip, 200e6); err == nil {
		t.Error("the Service still responds after cleanup")
	}
}

// checkPluginProcesses checks that plugins run in processes without rights, with all layers of the confinement that this kernel
// has.
func checkPluginProcesses(t *testing.T, agent int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, dir := range dirs {
		var pid int
		command, _ := os.ReadFile(dir + "/cmdline")
		if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err != nil || !strings.Contains(string(command), "plugin-process") || status(pid, "PPid") != fmt.Sprint(agent) {
			continue
		}
		found++
		for field, want := range map[string]string{
			"CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapInh": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		} {
			if got := status(pid, field); got != want {
				t.Errorf("process of a plugin: %s is %s, want %s", field, got, want)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d processes of plugins, want 2", found)
	}
}

// TestManifestRightsAreRequired checks that sluice fails with a clear error if a right of the manifest is missing.
func TestManifestRightsAreRequired(t *testing.T) {
	main := daemonSet(t).Spec.Template.Spec.Containers[0]
	for name, change := range map[string]func(*container){
		"without CAP_NET_ADMIN":            func(c *container) { c.Capabilities = nil },
		"non-root user with CAP_NET_ADMIN": func(c *container) { c.UID = 65532 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, withoutTableSize(read(t, "kustomize/base/sluice.yaml")))
			run := n.withManifests(n.container(main))
			change(&run)
			if run.UID != 0 {
				otherUsers(t)
			}
			out, err := n.run(run)
			if exitCode(err) != 1 || !strings.Contains(out, "need CAP_NET_ADMIN in the network namespace") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
