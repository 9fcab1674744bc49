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

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

// result is a run with what ginkgo reports of specs, which are given as "state seconds name" or "state/attempts seconds name".
func result(t *testing.T, r run, specs ...string) run {
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
	data, err := json.Marshal([]map[string]any{{"SpecReports": reports}})
	if err != nil {
		t.Fatal(err)
	}
	if r.specs, err = readReport(file(t, string(data))); err != nil {
		t.Fatal(err)
	}
	return r
}

// file is a new file with a text.
func file(t *testing.T, text string) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// published reads the tables of a document.
func published(t *testing.T, text string) *tables {
	t.Helper()
	all, err := readTables(file(t, "before\n<!-- e2e: begin -->\n"+text+"<!-- e2e: end -->\nafter\n"))
	if err != nil {
		t.Fatal(err)
	}
	return all
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
		all := published(t, "")
		all.add(result(t, run{Family: "ipv4", Proxy: "kube-proxy"}, c.peer...))
		all.add(result(t, run{Family: "ipv4", Proxy: "sluice"}, c.sluice...))
		all.add(result(t, run{Family: "ipv4", Proxy: "kube-proxy", Liberal: true}, "passed 1s should be of another cluster"))
		all = published(t, all.markdown())
		if err := all.compare(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
}

func TestTablesHaveEverySpecOfEveryRun(t *testing.T) {
	began := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	all := published(t, "")
	all.add(result(t, run{Family: "dual", Proxy: "sluice", Mode: "nftables", Version: "v1", Workers: 6, Kernel: "6.18", Began: began, Took: 13 * time.Minute, Focus: "a|b", Skip: "c"},
		"failed/2 2s should a|b", "passed/2 1s should recover", "passed/1 1s should work"))
	all.add(result(t, run{Family: "ipv4", Proxy: "kube-proxy", Version: "v1.37.2", Focus: everything}, "skipped 1s should work"))
	want := `| cluster | proxy | specs | passed | failed | skipped themselves | time | workers | Linux | date |
|---|---|---|---|---|---|---|---|---|---|
| ipv4 | kube-proxy v1.37.2 | all | 0 | 0 | 1 | 0s | 0 |  | 0001-01-01 |
| dual | sluice v1, mode nftables | part 1 | 2 | 1 | 0 | 13m0s | 6 | 6.18 | 2026-11-26 |

Parts of the suite:

1. ` + "`-focus 'a|b' -skip 'c'`" + `

sluice passes every spec that kube-proxy passes.

| spec | ipv4, kube-proxy | dual, sluice |
|---|---|---|
| Services should a\|b |  | **failed** |
| Services should recover |  | passed, attempt 2 |
| Services should work | skipped | passed |
`
	if got := all.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if again := published(t, want).markdown(); again != want {
		t.Errorf("read and written again:\n%s", again)
	}
}

// TestRunsOfTheDocumentStay: of other columns, and of other parts of the suite.
func TestRunsOfTheDocumentStay(t *testing.T) {
	add := func(before string, r run, specs ...string) string {
		t.Helper()
		all := published(t, before)
		all.add(result(t, r, specs...))
		return all.markdown()
	}
	r := run{Family: "dual", Proxy: "sluice", Version: "v1", Focus: everything}
	first, second := r, r
	first.Focus, second.Focus = "first", "second"
	text := add("", first, "passed 1s should be first", "failed 1s should be both")
	text = add(text, run{Family: "ipv6", Proxy: "sluice", Version: "v1", Focus: "second"}, "passed 1s should be first")
	second.Version = "v2"
	text = add(text, second, "passed 1s should be second", "passed 1s should be both")
	first.Version = "v3"
	text = add(text, first, "failed 1s should be first")
	for _, want := range []string{
		"| dual | sluice v2 | part 1 | 2 | 0 | 0 |", "| dual | sluice v3 | part 2 | 0 | 1 | 0 |", "| ipv6 | sluice v1 | part 1 | 1 | 0 | 0 |",
		"1. `-focus 'second' -skip ''`\n2. `-focus 'first' -skip ''`\n",
		"| Services should be both | passed |  |", "| Services should be first | **failed** | passed |", "| Services should be second | passed |  |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "sluice v1 | part 2") {
		t.Errorf("the earlier run of the same part stays:\n%s", text)
	}
	text = add(text, r, "passed 1s should be all")
	if strings.Contains(text, "sluice v2") || strings.Contains(text, "sluice v3") || strings.Contains(text, "should be both") || !strings.Contains(text, "should be first |  | passed |") {
		t.Errorf("a run of the whole suite replaces those of its column, and no others:\n%s", text)
	}
}

func TestDocumentsThatDoNotSayEnoughAreErrors(t *testing.T) {
	header := "<!-- e2e: begin -->\n| cluster | proxy | specs | passed |\n|---|---|---|---|\n| dual | sluice v1 | all | 1 |\n"
	for name, text := range map[string]string{
		"no marker":               "",
		"what the part is":        "<!-- e2e: begin -->\n| cluster | proxy | specs | passed |\n|---|---|---|---|\n| dual | sluice v1 | part 1 | 1 |\n<!-- e2e: end -->",
		"a run has too few cells": "<!-- e2e: begin -->\n| dual | sluice v1 |\n<!-- e2e: end -->",
		"a cell is missing":       header + "| spec | dual, kube-proxy | dual, sluice |\n|---|---|---|\n| should x | passed |\n<!-- e2e: end -->",
	} {
		if _, err := readTables(file(t, text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestReportsThatSayNothingAreErrors(t *testing.T) {
	for report, want := range map[string]string{
		`[]`: "no spec ran",
		`[{"SpecReports": [{"LeafNodeType": "It", "State": "skipped"}]}]`:                                                                 "no spec ran",
		`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no node is ready"}}]}]`: "no node is ready",
	} {
		if _, err := readReport(file(t, report)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", report, err, want)
		}
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

// TestDocumentIsReadAsItIsWritten: a run that is added must not change what is there.
func TestDocumentIsReadAsItIsWritten(t *testing.T) {
	const document = "../../../E2E.md"
	want, err := benchutil.Published(document, marker)
	if err != nil {
		t.Fatal(err)
	}
	all, err := readTables(document)
	if err != nil {
		t.Fatal(err)
	}
	if got := all.markdown(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
