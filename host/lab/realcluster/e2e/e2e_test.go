package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// result writes a run with a report as ginkgo writes it, of specs given as "state seconds name" or "state/attempts seconds name".
func result(t *testing.T, dir string, r run, specs ...string) {
	t.Helper()
	type report struct {
		ContainerHierarchyTexts           []string
		LeafNodeType, LeafNodeText, State string
		RunTime                           time.Duration
		NumAttempts                       int
	}
	reports := []report{{LeafNodeType: "SynchronizedBeforeSuite", State: "passed"}}
	for _, s := range specs {
		f := strings.SplitN(s, " ", 3)
		took, err := time.ParseDuration(f[1])
		if err != nil {
			t.Fatal(err)
		}
		state, attempts, _ := strings.Cut(f[0], "/")
		n, _ := strconv.Atoi(attempts)
		reports = append(reports, report{[]string{"[sig-network] Services"}, "It", f[2], state, took, n})
	}
	at := filepath.Join(dir, r.name())
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]any{"run.json": r, "report.json": []map[string]any{{"SpecReports": reports}}} {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSpecsThatOnlyKubeProxyPassesAreErrors(t *testing.T) {
	both := []string{"passed 1s should work", "skipped 0s should not be of the focus", "skipped 1s should need more nodes", "pending 0s should come"}
	for _, c := range []struct {
		name         string
		peer, sluice []string
		want         string // of the error; "" if there is none
	}{
		{"the same", both, both, ""},
		{"neither passes", []string{"failed 1s should fail"}, []string{"failed 1s should fail"}, ""},
		{"sluice passes more", []string{"failed 1s should x", "skipped 1s should y"}, []string{"passed 1s should x", "passed 1s should y"}, ""},
		{"sluice fails", both, []string{"failed 1s should work"}, "1 specs that kube-proxy passes and sluice does not:\nipv4, failed: Services should work"},
		{"sluice panics", both, []string{"panicked 1s should work"}, "ipv4, panicked: Services should work"},
		{"sluice takes too long", both, []string{"timedout 1s should work"}, "ipv4, timedout"},
		{"sluice skips", both, []string{"skipped 1s should work"}, "ipv4, skipped: Services should work"},
		{"sluice does not run it", both, []string{"passed 1s should another"}, "ipv4, not run: Services should work"},
	} {
		dir := t.TempDir()
		result(t, dir, run{Family: "ipv4", Proxy: "kube-proxy"}, c.peer...)
		result(t, dir, run{Family: "ipv4", Proxy: "sluice"}, c.sluice...)
		result(t, dir, run{Family: "ipv4", Proxy: "kube-proxy", Liberal: true}, "passed 1s should be of another cluster")
		all, err := readRuns(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := all.compare(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestTablesHaveEverySpecOfEveryRun(t *testing.T) {
	dir := t.TempDir()
	began := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	result(t, dir, run{Family: "dual", Proxy: "sluice", Mode: "nftables", Version: "v1", Workers: 6, Kernel: "6.18", Began: began, Took: 13 * time.Minute, Focus: "a|b", Skip: "c"},
		"failed/2 2s should a|b", "passed/2 1s should recover", "passed/1 1s should work")
	result(t, dir, run{Family: "ipv4", Proxy: "kube-proxy", Version: "v1.37.2", Focus: everything}, "skipped 1s should work")
	all, err := readRuns(dir)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("before\n<!-- e2e: begin -->\nold\n<!-- e2e: end -->\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := publish(all, page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := `before
<!-- e2e: begin -->
| cluster | proxy | passed | failed | skipped themselves | time | workers | Linux | date |
|---|---|---|---|---|---|---|---|---|
| ipv4 | kube-proxy v1.37.2 | 0 | 0 | 1 | 0s | 0 |  | 0001-01-01 |
| dual | sluice v1, mode nftables | 2 | 1 | 0 | 13m0s | 6 | 6.18 | 2026-11-26 |

dual, sluice: a part of the suite, ` + "`-focus 'a|b' -skip 'c'`" + `.

sluice passes every spec that kube-proxy passes.

| spec | ipv4, kube-proxy | dual, sluice |
|---|---|---|
| Services should a\|b |  | **failed** |
| Services should recover |  | passed, attempt 2 |
| Services should work | skipped | passed |
<!-- e2e: end -->
after
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

func TestRunsThatSayNothingAreErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := readRuns(dir); err == nil {
		t.Error("no results: no error")
	}
	result(t, dir, run{Family: "ipv4", Proxy: "sluice"}, "skipped 0s should not be of the focus")
	if _, err := readRuns(dir); err == nil || !strings.Contains(err.Error(), "no spec ran") {
		t.Errorf("nothing ran: %v", err)
	}
	report := `[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node is ready"}}]}]`
	if err := os.WriteFile(filepath.Join(dir, "ipv4-sluice", "report.json"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readRuns(dir); err == nil || !strings.Contains(err.Error(), "no node is ready") {
		t.Errorf("the suite does not begin: %v", err)
	}
}

func TestSpecsOfSCTPRunInGuests(t *testing.T) {
	guests := regexp.MustCompile(strings.Join(skips(true), "|"))
	for name, want := range map[string]bool{
		"[sig-network] Networking Granular Checks: Services should function for pod-Service: sctp [Feature:SCTPConnectivity]": true,
		"[sig-network] Services should allow creating a basic SCTP service with pod and endpoints [LinuxOnly] [Serial]":       true,
		"[sig-network] Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly] [Serial]":                     true,
		"[sig-network] Networking IPerf2 [Feature:Networking-Performance] should run iperf2":                                  false,
	} {
		if guests.MatchString(name) == want {
			t.Errorf("%s: runs is %t, want %t", name, !want, want)
		}
	}
}

func TestOnlyRunsOfTheSameKindAreCompared(t *testing.T) {
	for want, r := range map[string]run{
		"ipv4-sluice":           {Family: "ipv4", Mode: nftables},
		"ipv4-liberal-sluice":   {Family: "ipv4", Mode: nftables, Liberal: true},
		"dual-6.12-sluice":      {Family: "dual", Mode: nftables, Guests: "6.12"},
		"ipv4-6.12-ipvs-sluice": {Family: "ipv4", Mode: ipvs, Guests: "6.12"},
	} {
		r.Proxy = "sluice"
		if got := r.name(); got != want {
			t.Errorf("results are in %q, want %q", got, want)
		}
	}
}

func TestKubeProxyServesNodePortsOnLoopback(t *testing.T) {
	for mode, want := range map[string]string{
		nftables: "conntrack: {}\n" + nodePorts + "\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\n",
		ipvs:     "conntrack: {}\n" + nodePorts + "\n",
	} {
		if got := localNodePorts(mode, "conntrack: {}"); got != want {
			t.Errorf("mode %s: got %q, want %q", mode, got, want)
		}
	}
}

func TestSpecsOfTheClustersFamilyRun(t *testing.T) {
	for name, want := range map[string]string{ // the families in which it runs
		"[sig-network] Networking Granular Checks: Services should function for pod-Service: http":                                   "ipv4 dual ipv6",
		"[sig-network] [Feature:IPv6DualStack] should create pod":                                                                    "dual",
		"[sig-network] Services should be able to switch [LoadBalancer]":                                                             "ipv4 dual ipv6",
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should only allow access from service loadbalancer source ranges [Slow]": "ipv4 dual",
		"[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work from pods [Slow]":               "ipv4 dual",
		"[sig-network] Services [Serial] should x":                                                                                   "ipv4 dual ipv6",
		"[sig-network] LocalhostNodePorts [Feature:LocalhostNodePorts] should proxy":                                                 "ipv4 dual ipv6",
		"[sig-network] SCTP [LinuxOnly] should create":                                                                               "",
		"[sig-network] Netpol should deny":                                                                                           "",
	} {
		var in []string
		for _, f := range []string{"ipv4", "dual", "ipv6"} {
			if !regexp.MustCompile(strings.Join(append(skips(false), familySkips(f)), "|")).MatchString(name) {
				in = append(in, f)
			}
		}
		if got := strings.Join(in, " "); got != want {
			t.Errorf("%s: runs in %q, want %q", name, got, want)
		}
	}
}
