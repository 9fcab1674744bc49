package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"github.com/sluice-proxy/sluice/host/plugin/confine"
)

func TestCheckPrintsWhatIsMissing(t *testing.T) {
	var b strings.Builder
	err := printFindings(&b, []probe.Finding{
		{Group: "kernel", Name: "tables", State: probe.OK, Required: true},
		{Group: "kernel", Name: "reject", State: probe.Missing, Required: true, Found: "operation not supported", Impact: "wrong ports", Remedy: "a kernel with it: 5.9"},
		{Group: "kernel", Name: "late", State: probe.Unknown, Required: true, Found: "not tried"},
		{Group: "sysctls", Name: "IPv6", State: probe.Missing, Impact: "IPv6"},
	})
	const want = `kernel
  ok        tables
  missing   reject (required): operation not supported
            impact: wrong ports
            remedy: a kernel with it: 5.9
  unknown   late: not tried
sysctls
  missing   IPv6
            impact: IPv6
`
	if err != nil || b.String() != want {
		t.Errorf("%v, got\n%s", err, b.String())
	}
}

// inNamespace runs a shell command with sluice in its PATH in new user and network namespaces, with some or all capabilities.
func inNamespace(t *testing.T, line string, caps ...uintptr) (stdout, stderr string, err error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(dir, "sluice")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if caps != nil { // not root: only the given capabilities
		cmd.SysProcAttr.UidMappings[0].ContainerID, cmd.SysProcAttr.GidMappings[0].ContainerID = 1000, 1000
		cmd.SysProcAttr.AmbientCaps = caps
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		if os.Getenv("CI") != "" {
			t.Fatalf("create namespaces: %v", err)
		}
		t.Skipf("create namespaces: %v", err)
	}
	return out.String(), errs.String(), err
}

type checkReport struct {
	OK       bool
	Findings []probe.Finding
}

func checkInNamespace(t *testing.T, line string, caps ...uintptr) (checkReport, error) {
	t.Helper()
	out, stderr, err := inNamespace(t, line, caps...)
	var r checkReport
	if jerr := json.Unmarshal([]byte(out), &r); jerr != nil {
		t.Fatalf("%v in %q\n%s", jerr, out, stderr)
	}
	if (err == nil) != r.OK {
		t.Errorf("ok %v, and it ends with %v", r.OK, err)
	}
	return r, err
}

func (r checkReport) find(name string) probe.Finding {
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	return probe.Finding{}
}

func TestCheckOnThisKernel(t *testing.T) {
	r, err := checkInNamespace(t, "sluice check -o json")
	if err != nil {
		t.Errorf("something is missing: %+v", r.Findings)
	}
	for _, name := range []string{"CAP_NET_ADMIN", "tables", "a whole ruleset", "netlink"} {
		if f := r.find(name); f.State != probe.OK {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := r.find("net.ipv4.ip_forward"); f.State != probe.Warning { // disabled in a new namespace
		t.Errorf("ip_forward: %+v", f)
	}
}

// Chains of other programs, as docker, a firewall, portmap and kube-proxy make them.
func TestCheckNamesRulesOfOthers(t *testing.T) {
	testenv.RequireProgram(t, "nft", "nftables")
	r, _ := checkInNamespace(t, `nft -f - <<'EOF'
table ip filter {
	chain INPUT { type filter hook input priority 0; policy drop; }
	chain FORWARD { type filter hook forward priority 0; policy drop; }
	chain OUTPUT { type filter hook output priority 0; policy drop; }
	chain DOCKER-USER { return; }
}
table ip nat {
	chain PREROUTING { type nat hook prerouting priority -100; tcp dport 8080 dnat to 10.244.0.9:80; }
	chain OUTPUT { type nat hook output priority -100; }
}
table inet firewalld {
	chain early { type nat hook prerouting priority -140; fib daddr type local tcp dport 8443 redirect to :443; }
	chain filter_INPUT { type filter hook input priority 10; policy accept; iifname "lo" accept; log prefix "x" counter reject with icmpx admin-prohibited; }
	chain filter_FORWARD { type filter hook forward priority 10; policy accept; ct status dnat accept; drop; }
	chain other { type filter hook forward priority 11; policy accept; tcp dport 25 reject; }
}
table ip sluice { chain forward { type filter hook forward priority 0; policy drop; }; }
table ip kube-proxy { chain services { return; }; }
EOF
sluice check -o json`)
	const drop = "inet firewalld filter_FORWARD (hook forward, priority 10), inet firewalld filter_INPUT (hook input, priority 10), " +
		"ip filter FORWARD (hook forward, priority 0), ip filter INPUT (hook input, priority 0)"
	if f := r.find("chains that drop by default"); f.State != probe.Warning || f.Found != drop {
		t.Errorf("%+v", f)
	}
	if f := r.find("NAT before sluice's"); f.State != probe.Warning || f.Found != "inet firewalld early (hook prerouting, priority -140)" {
		t.Errorf("%+v", f)
	}
	if f := r.find("kube-proxy"); f.State != probe.Warning || f.Found != "it does not run, and has left nftables, table ip kube-proxy" {
		t.Errorf("%+v", f)
	}
	if f := r.find("version"); f.State != probe.OK || !strings.Contains(f.Found, "; tested: 6.1, ") {
		t.Errorf("%+v", f)
	}
	r, _ = checkInNamespace(t, `nft 'add table ip nat; add chain ip nat PREROUTING { type nat hook prerouting priority -100; }; add rule ip nat PREROUTING tcp dport 1 dnat to 10.0.0.1'
sluice check -o json`)
	if f := r.find("chains that drop by default"); f.State != probe.OK || f.Found != "" {
		t.Errorf("%+v", f)
	}
	if f := r.find("NAT before sluice's"); f.State != probe.OK || f.Found != "none; after it: ip nat PREROUTING (hook prerouting, priority -100)" {
		t.Errorf("%+v", f)
	}
	if f := r.find("kube-proxy"); f.State != probe.OK {
		t.Errorf("%+v", f)
	}
}

func TestCheckWithCapNetAdminOnly(t *testing.T) {
	r, err := checkInNamespace(t, "sluice check -o json", unix.CAP_NET_ADMIN)
	if err != nil {
		t.Errorf("something is missing: %+v", r.Findings)
	}
	if f := r.find("tables"); f.State != probe.OK {
		t.Errorf("tables: %+v", f)
	}
	if f := r.find("a whole ruleset"); f.State != probe.Unknown {
		t.Errorf("a whole ruleset: %+v", f)
	}
}

func TestCheckWithoutRightsFails(t *testing.T) {
	r, err := checkInNamespace(t, "sluice check -o json", unix.CAP_CHOWN)
	if err == nil {
		t.Error("it succeeds")
	}
	if f := r.find("CAP_NET_ADMIN"); f.State != probe.Missing || !f.Required {
		t.Errorf("%+v", f)
	}
}

func TestInitOnlySetsSysctlsAndExits(t *testing.T) {
	const line = `cat > c.yaml <<EOF
apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 123s, tcpCloseWaitTimeout: 0s, udpTimeout: 7s, udpStreamTimeout: 9s, tcpBeLiberal: true}
EOF
cd /proc/sys/net/netfilter && before=$(cat nf_conntrack_tcp_timeout_close_wait) && sluice run --init-only --config $OLDPWD/c.yaml &&
cat nf_conntrack_tcp_timeout_established nf_conntrack_udp_timeout nf_conntrack_udp_timeout_stream nf_conntrack_tcp_be_liberal &&
[ $before = $(cat nf_conntrack_tcp_timeout_close_wait) ] && echo left && sluice run --init-only --config $OLDPWD/c.yaml 2>&1 && echo quiet`
	out, stderr, err := inNamespace(t, line)
	if want := "123\n7\n9\n1\nleft\nquiet\n"; err != nil || out != want {
		t.Errorf("got %q, %v\n%s", out, err, stderr)
	}
	if !strings.Contains(stderr, "nf_conntrack_udp_timeout from=") {
		t.Errorf("standard error: %s", stderr)
	}
}

// The size of the conntrack table is global and cannot be set in a network namespace.
func TestInitOnlyFailsWhereRunWarns(t *testing.T) {
	const line = `printf 'apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nlogging: {format: json}\nconntrack: {maxPerCore: 1, min: 2000000000}\n' > c.yaml
mkdir m; sluice run --once --source m --node n0 --checkpoint '' --config c.yaml && echo forwards; sluice run --init-only --config c.yaml`
	out, stderr, err := inNamespace(t, line)
	if err == nil || out != "forwards\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if n := strings.Count(stderr, "set net.netfilter.nf_conntrack_max from "); n != 2 || !strings.Contains(stderr, `"level":"WARN"`) {
		t.Errorf("standard error: %s", stderr)
	}
}

// NodePorts on all addresses include addresses that are added while sluice is running, after a syncPeriod.
func TestRunFollowsLocalAddresses(t *testing.T) {
	const line = `ip link set lo up && ip addr add 192.0.2.1/32 dev lo
cat > c.yaml <<EOF
apiVersion: sluice.dev/v1alpha1
kind: SluiceConfiguration
nodePortAddresses: [0.0.0.0/0]
syncPeriod: 1s
metricsBindAddress: ""
healthzBindAddress: ""
EOF
mkdir m; sluice run --source m --node n0 --checkpoint '' --socket s --config c.yaml & pid=$!
has() { nft list set ip sluice nodeport_addrs 2>/dev/null | grep -q "$1"; }
wait_for() { n=0; until "$@"; do n=$((n+1)); [ $n -lt 600 ] || { echo "waited in vain: $*"; kill $pid; exit 1; }; sleep 0.1; done; }
wait_for has 192.0.2.1
ip addr add 192.0.2.5/32 dev lo; wait_for has 192.0.2.5
gone() { ! has 192.0.2.1; }
ip addr del 192.0.2.1/32 dev lo; wait_for gone
has 192.0.2.5 && echo followed; kill $pid; wait $pid`
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%v: install iproute2 and nftables", err)
			}
			t.Skipf("%v: install iproute2 and nftables", err)
		}
	}
	out, stderr, err := inNamespace(t, line)
	if !strings.HasPrefix(out, "followed\n") {
		t.Errorf("got %q, %v\n%s", out, err, stderr)
	}
}

func TestCheckSaysWhetherPluginsCanRun(t *testing.T) {
	found := checkPlugins(t.Context(), &inputFlags{}, config.Default())
	if len(found) != 2 || found[0].Name != "executable memory" || found[0].State != probe.OK || found[0].Group != "plugins" {
		t.Errorf("%+v", found)
	}
}

func TestCheckSaysWhichLayersOfConfinementAreMissing(t *testing.T) {
	found := checkPlugins(t.Context(), &inputFlags{}, config.Default())[1]
	if found.Name != "confinement of their processes" || found.State == probe.Unknown || found.State == probe.Missing && found.Found == "" {
		t.Errorf("here: %+v", found)
	}
	found = checkConfinement([]confine.Layer{{Name: confine.Filter}, {Name: confine.Landlock, Err: "function not implemented"}}, nil)
	if found.State != probe.Missing || found.Required || !strings.Contains(found.Found, "Landlock") || strings.Contains(found.Found, "seccomp") {
		t.Errorf("without Landlock: %+v", found)
	}
	if found = checkConfinement(nil, errors.New("killed")); found.State != probe.Unknown || found.Found != "killed" {
		t.Errorf("without an answer: %+v", found)
	}
}
