package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/node/probe"
	"golang.org/x/sys/unix"
)

func TestMissingFeaturesAreFindingsWithTheirImpact(t *testing.T) {
	features := []nftables.Feature{
		{Name: "tables", Required: true},
		{Name: "reject", Kernel: "5.9", For: "wrong ports", Required: true, Err: unix.EOPNOTSUPP},
		{Name: "late", Required: true, Err: fmt.Errorf("x: %w", nftables.ErrNotTried)},
		{Name: "IPv6", Kernel: "CONFIG_NF_TABLES_IPV6", For: "IPv6", Err: unix.EAFNOSUPPORT},
	}
	found := nftablesFindings(features, true, nil)
	want := []probe.Finding{
		{Group: "kernel", Name: "tables", State: probe.OK, Required: true},
		{Group: "kernel", Name: "reject", State: probe.Missing, Required: true, Found: "operation not supported", Impact: "wrong ports", Remedy: "a kernel with it: 5.9"},
		{Group: "kernel", Name: "late", State: probe.Unknown, Required: true, Found: "x: " + nftables.ErrNotTried.Error()},
		{Group: "kernel", Name: "IPv6", State: probe.Missing, Found: "address family not supported by protocol", Impact: "IPv6", Remedy: "a kernel with it: CONFIG_NF_TABLES_IPV6"},
	}
	if !slices.Equal(found, want) {
		t.Errorf("got %+v", found)
	}
	if !probe.RequiredMissing(found) {
		t.Error("a required feature is missing")
	}
	features[1].Err = nil
	if probe.RequiredMissing(nftablesFindings(features, true, nil)) {
		t.Error("nothing required is missing")
	}
}

func TestKernelFeaturesAreUnknownWithoutPermission(t *testing.T) {
	denied := fmt.Errorf("nftables: %w", unix.EPERM)
	for name, found := range map[string][]probe.Finding{
		"no socket":      nftablesFindings(nil, false, denied),
		"no transaction": nftablesFindings([]nftables.Feature{{Name: "tables", Err: denied}, {Name: "x", Err: denied}}, false, nil),
	} {
		if len(found) != 1 || found[0].State != probe.Unknown || !strings.Contains(found[0].Remedy, "CAP_NET_ADMIN") {
			t.Errorf("%s: %+v", name, found)
		}
	}
	if found := nftablesFindings(nil, false, unix.EPROTONOSUPPORT); !probe.RequiredMissing(found) {
		t.Errorf("a kernel without nf_tables: %+v", found)
	}
}
