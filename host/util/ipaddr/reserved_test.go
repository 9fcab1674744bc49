package ipaddr

import (
	"net/netip"
	"os"
	"strings"
	"testing"
)

// TestMetadataAddressesAreKnown also in their IPv6 forms; host/plugin/registry and host/core/eligibility read the same cases.
func TestMetadataAddressesAreKnown(t *testing.T) {
	cases, err := os.ReadFile("testdata/addresses")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]bool{}
	for line := range strings.Lines(string(cases)) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		a := netip.MustParseAddr(text)
		seen[a] = true
		if v4, ok := Embedded(a); ok && !a.IsUnspecified() && !a.IsLoopback() {
			a = v4
		}
		if cloud := Metadata(a); (cloud != "") != (kind == "metadata") {
			t.Errorf("%s, which is %s, is of cloud %q", text, kind, cloud)
		}
	}
	for a := range metadata {
		if !seen[a] {
			t.Errorf("%s is not among the cases", a)
		}
	}
}
