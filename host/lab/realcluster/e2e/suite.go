package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// skips are the specs that cannot run here, on this machine's kernel or in guests. Those of other IP families are in familySkips.
func skips(guests bool) []string {
	sctp := []string{"SCTP|sctp"} // this kernel may have none
	if guests {
		sctp = nil
	}
	return append(sctp,
		"Alpha|Beta|Flaky", // as in upstream's jobs
		"Internet.connection|Networking-DNS|Provider:GCE", // the cluster has no Internet
		"NetworkPolicy|Netpol",                            // nor a network plugin with policies
		"IPerf2",                                          // Debian's iperf prints other fields
		"DNS configMap|PerformanceDNS",                    // of CoreDNS, not of Services
		"recreate its iptables rules|restarting (apiserver|kube-proxy)",     // by SSH; with Pods of these names in kube-system
		"metric for tracking accepted packets destined for|KubeProxyNFAcct", // of mode iptables
	)
}

func familySkips(f string) string {
	switch realcluster.Family(f) {
	case realcluster.IPv4:
		return "IPv6DualStack|Networking-IPv6"
	case realcluster.IPv6:
		// The last two give wget an address without brackets, and take what is before the first colon for an address.
		return "IPv6DualStack|Networking-IPv4|service loadbalancer source ranges|Local .*should work from pods"
	default:
		return "Networking-IPv6"
	}
}

// run is a run of the suite.
type run struct {
	Family, Proxy, Mode, Version string
	Workers                      int
	Liberal                      bool
	Guests                       string // the test kernel of workers that are guests
	Focus, Skip                  string // of the command
	Kernel                       string
	Began                        time.Time
	Took                         time.Duration

	specs map[string]spec
}

// cluster names what the runs that are compared have in common.
func (r run) cluster() string {
	name := r.Family
	if r.Liberal {
		name += "-liberal"
	}
	if r.Guests != "" {
		name += "-" + r.Guests
	}
	if r.Mode == ipvs {
		name += "-" + ipvs
	}
	return name
}

func (r run) name() string { return r.cluster() + "-" + r.Proxy }

// part returns the flags of a run of a part of the suite; "" if it is of all of it.
func (r run) part() string {
	if r.Focus == everything && r.Skip == "" {
		return ""
	}
	return fmt.Sprintf("-focus '%s' -skip '%s'", r.Focus, r.Skip)
}

// test runs the suite, and returns the run with its results. Its report and log are in a folder.
func (r run) test(ctx context.Context, c *realcluster.Cluster, suite programs.Suite, o options) (run, error) {
	to, err := filepath.Abs(filepath.Join(o.results, r.name()))
	if err != nil {
		return r, err
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return r, err
	}
	registries := filepath.Join(to, "registries.yaml")
	if err := os.WriteFile(registries, []byte(programs.SuiteRegistries), 0o644); err != nil {
		return r, err
	}
	kernel, err := c.Nodes[0].Exec(ctx, "uname", "-r")
	if err != nil {
		return r, err
	}
	r.Kernel, _, _ = strings.Cut(strings.TrimSpace(kernel), "-") // without what its builder adds
	skip := strings.Join(append(skips(r.Guests != ""), familySkips(r.Family)), "|")
	if o.skip != "" {
		skip += "|" + o.skip
	}
	log, err := os.Create(filepath.Join(to, "log.txt"))
	if err != nil {
		return r, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(suite.Bin, "ginkgo"),
		"--procs="+fmt.Sprint(o.procs), "--focus="+o.focus, "--skip="+skip, "--timeout=3h", "--flake-attempts="+fmt.Sprint(o.attempts), "--no-color",
		"--output-dir="+to, "--json-report=report.json", "--junit-report=junit.xml", filepath.Join(suite.Bin, "e2e.test"), "--",
		"--kubeconfig="+c.Kubeconfig(), "--kubectl-path="+filepath.Join(c.Tools, "kubectl"), "--provider=skeleton",
		"--num-nodes="+fmt.Sprint(o.workers), "--disable-log-dump=true", "--report-dir="+to)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+registries, "KUBERNETES_CONFORMANCE_TEST=y")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	fmt.Fprintf(os.Stderr, "testing %s: %s\n", r.name(), log.Name())
	r.Began = time.Now().UTC().Truncate(time.Second)
	p, err := c.Outside.Start(cmd)
	if err != nil {
		return r, err
	}
	failed := p.Wait() // if a spec fails, for example: the report says which
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	r.Took = time.Since(r.Began).Truncate(time.Second)
	r.specs, err = readReport(filepath.Join(to, "report.json"))
	if err != nil {
		return r, errors.Join(err, failed)
	}
	fmt.Fprintf(os.Stderr, "%s: %s in %s\n", r.name(), r.counts(), r.Took)
	return r, nil
}
