package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// order sorts runs by family and proxy, as the tables have them.
func (all runs) order() {
	families := []realcluster.Family{realcluster.IPv4, realcluster.Dual, realcluster.IPv6}
	slices.SortFunc(all, func(a, b run) int {
		return cmp.Or(cmp.Compare(slices.Index(families, realcluster.Family(a.Family)), slices.Index(families, realcluster.Family(b.Family))), strings.Compare(a.cluster(), b.cluster()), strings.Compare(a.Proxy, b.Proxy))
	})
}

// specs returns the names of all specs that ran anywhere.
func (all runs) specs() []string {
	names := map[string]bool{}
	for _, r := range all {
		for name := range r.specs {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// worse returns, for each spec that kube-proxy passes and sluice does not in the same family, how sluice ended it.
func (all runs) worse() (out []string) {
	for _, sluice := range all {
		for _, peer := range all {
			if sluice.Proxy != string(realcluster.Sluice) || peer.Proxy != string(realcluster.KubeProxy) || peer.cluster() != sluice.cluster() {
				continue
			}
			for _, name := range all.specs() {
				if peer.specs[name].state == passed && sluice.specs[name].state != passed {
					out = append(out, fmt.Sprintf("%s, %s: %s", sluice.cluster(), cmp.Or(sluice.specs[name].state, "not run"), name))
				}
			}
		}
	}
	return out
}

// compare returns an error if kube-proxy passes a spec that sluice does not.
func (all runs) compare() error {
	if worse := all.worse(); len(worse) > 0 {
		return fmt.Errorf("%d specs that kube-proxy passes and sluice does not:\n%s", len(worse), strings.Join(worse, "\n"))
	}
	return nil
}

// publish prints the tables, and writes them to a document unless it is "".
func publish(all runs, to string) error {
	all.order()
	var b bytes.Buffer
	fmt.Fprint(&b, "| cluster | proxy | passed | failed | skipped themselves | time | workers | Linux | date |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		n := map[string]int{}
		for _, s := range r.specs {
			n[s.state]++
		}
		proxy := strings.TrimSpace(r.Proxy + " " + r.Version)
		if r.Mode != "" {
			proxy += ", mode " + r.Mode
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %d | %s | %s |\n", r.cluster(), proxy, n[passed], len(r.specs)-n[passed]-n[skipped], n[skipped], r.Took, r.Workers, r.Kernel, r.Began.Format(time.DateOnly))
	}
	for _, r := range all {
		if r.Focus != everything || r.Skip != "" {
			fmt.Fprintf(&b, "\n%s, %s: a part of the suite, `-focus '%s' -skip '%s'`.\n", r.cluster(), r.Proxy, r.Focus, r.Skip)
		}
	}
	if worse := all.worse(); len(worse) > 0 {
		fmt.Fprintf(&b, "\nkube-proxy passes and sluice does not:\n\n- %s\n", strings.Join(worse, "\n- "))
	} else {
		fmt.Fprint(&b, "\nsluice passes every spec that kube-proxy passes.\n")
	}
	fmt.Fprint(&b, "\n| spec |")
	line := "\n|---|"
	for _, r := range all {
		fmt.Fprintf(&b, " %s, %s |", r.cluster(), r.Proxy)
		line += "---|"
	}
	fmt.Fprintln(&b, line)
	for _, name := range all.specs() {
		fmt.Fprintf(&b, "| %s |", strings.ReplaceAll(name, "|", `\|`))
		for _, r := range all {
			fmt.Fprintf(&b, " %s |", r.specs[name])
		}
		fmt.Fprintln(&b)
	}
	return benchutil.Publish(to, "e2e", b.Bytes())
}

// String returns the cell of a spec: "" if it did not run.
func (s spec) String() string {
	switch {
	case s.state == passed && s.attempts > 1:
		return fmt.Sprintf("passed, attempt %d", s.attempts)
	case s.state == "", s.state == passed, s.state == skipped:
		return s.state
	}
	return "**" + s.state + "**"
}
